import dataclasses
import inspect
import pickle
import typing


@dataclasses.dataclass
class Point:
    x: int = 3


copy = pickle.loads(pickle.dumps(Point(5)))
print(copy, type(copy) is Point, Point.__module__, pickle.dumps(copy, 0))
print(typing.get_type_hints(Point), inspect.getsource(Point).splitlines()[1], inspect.getfile(Point))
