"""The two tasks of the paper and others. A new one is a file here that registers itself and a line below."""

from underhood.data.associative_recall import AssociativeRecall
from underhood.data.linear_regression import LinearRegression
from underhood.data.make import make_task, task_settings
from underhood.data.task import TASKS, AbstractTask, SecondOrder
from underhood.data.teacher_student import TeacherStudent

__all__ = [
    "TASKS",
    "AbstractTask",
    "AssociativeRecall",
    "LinearRegression",
    "SecondOrder",
    "TeacherStudent",
    "make_task",
    "task_settings",
]
