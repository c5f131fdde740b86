"""Draws boxes and arrows as SVG: text in, text out, without any library."""

from dataclasses import dataclass, field
from html import escape
from typing import Final

_STYLE: Final = """
svg { background: #fff; font-family: system-ui, sans-serif; font-size: 13px; }
rect { fill: #eef2ff; stroke: #4051b5; } .kafka { fill: #fff4e0; stroke: #c77700; } .outside { fill: #f4f4f5; stroke: #71717a; }
.plain { fill: none; stroke: #a1a1aa; stroke-dasharray: 4 3; }
path { stroke: #3f3f46; stroke-width: 1.4; fill: none; } text { fill: #18181b; } .small { font-size: 11px; fill: #52525b; }
.head { font-weight: 600; }
"""
LINE: Final = 15


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle with lines of text; the first line is its name. Sizes are pixels."""

    x: int
    y: int
    width: int
    height: int

    @property
    def left(self) -> tuple[int, int]:
        return self.x, self.y + self.height // 2

    @property
    def right(self) -> tuple[int, int]:
        return self.x + self.width, self.y + self.height // 2

    @property
    def top(self) -> tuple[int, int]:
        return self.x + self.width // 2, self.y

    @property
    def bottom(self) -> tuple[int, int]:
        return self.x + self.width // 2, self.y + self.height


@dataclass(slots=True)
class Drawing:
    """Collects shapes. title: what readers hear who do not see it."""

    width: int
    height: int
    title: str
    _shapes: list[str] = field(default_factory=list)

    def box(self, x: int, y: int, width: int, name: str, *lines: str, kind: str = "", height: int = 0) -> Box:
        """Draws a box. kind: `kafka`, `outside`, `plain`, or empty for a process of Inflight."""
        box = Box(x, y, width, height or 22 + LINE * len(lines) + 8)
        self._shapes.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{box.width}" height="{box.height}" rx="5"/>')
        self.text(x + 9, y + 19, name, kind="head")
        for number, line in enumerate(lines, start=1):
            self.text(x + 9, y + 19 + LINE * number, line, kind="small")
        return box

    def text(self, x: int, y: int, words: str, *, kind: str = "small", anchor: str = "start") -> None:
        self._shapes.append(f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>')

    def arrow(self, *points: tuple[int, int], label: str = "", both: bool = False) -> None:
        """Draws an arrow through the points; the label stands above the middle of its first part."""
        way = " L ".join(f"{x} {y}" for x, y in points)
        self._shapes.append(
            f'<path d="M {way}" marker-end="url(#end)"{" marker-start=" + chr(34) + "url(#start)" + chr(34) if both else ""}/>'
        )
        if label:
            (x1, y1), (x2, y2) = points[0], points[1]
            is_upright = x1 == x2
            self.text(
                (x1 + x2) // 2 + (6 if is_upright else 0),
                (y1 + y2) // 2 - (0 if is_upright else 5),
                label,
                anchor="start" if is_upright else "middle",
            )

    def svg(self) -> str:
        """Returns the picture."""
        head = (
            '<marker id="end" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M 0 0 L 10 5 L 0 10 z" style="fill:#3f3f46"/></marker>'
            '<marker id="start" viewBox="0 0 10 10" refX="1" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M 10 0 L 0 5 L 10 10 z" style="fill:#3f3f46"/></marker>'
        )
        shapes = "\n".join(self._shapes)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}" '
            f'role="img">\n<title>{escape(self.title)}</title>\n<style>{_STYLE}</style>\n<defs>{head}</defs>\n'
            f'<rect x="0" y="0" width="{self.width}" height="{self.height}" style="fill:#fff;stroke:none"/>\n{shapes}\n</svg>\n'
        )
