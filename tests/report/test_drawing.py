from orbitwise.report.drawing import shortened, svg_uri
from tests.report.drawings import svg_of, text_of


def test_a_figure_is_the_same_bytes_every_time_and_its_text_is_text():
    def draw(axes):
        axes.plot([1, 2], [3, 4])
        axes.set_title("a <b> & $x_1$ 数")

    first = svg_uri(draw)
    assert first == svg_uri(draw)
    assert "a &lt;b&gt; &amp; $x_1$ 数" in text_of(first)
    assert "system-ui" in svg_of(first)


def test_long_names_are_cut():
    assert shortened("a" * 20, 5) == "aaaa…"
    assert shortened("short") == "short"
