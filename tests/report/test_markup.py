import json

from orbitwise.report.markup import (
    escape,
    figure,
    fill,
    json_text,
    paragraph,
    resource,
    section,
    side_by_side,
    table,
    unbroken,
)

HOSTILE = "</script><script>alert('x')</script>\"&\x00\u2028"


def test_escaped_text_opens_and_closes_nothing():
    text = escape(HOSTILE)
    assert not set(text) & set("<>\"'\x00\u2028")
    assert "&lt;script&gt;" in text


def test_json_cannot_leave_its_element_and_reads_back():
    text = json_text({"name": HOSTILE})
    assert "<" not in text
    assert "&" not in text
    assert json.loads(text)["name"] == HOSTILE


def test_parts_are_filled_in_once():
    assert fill("a {{b}} {{c}}", {"b": "{{c}}", "c": "d"}) == "a {{c}} d"


def test_numbers_stay_with_their_units():
    assert unbroken("158 ± 54 nats, 3 % of 5") == "158\u00a0±\u00a054\u00a0nats, 3\u00a0% of 5"


def test_wide_tables_become_cards():
    wide = table(list("abcde"), [list("12345")], numeric=[1])
    assert '<table class="wide">' in wide
    assert '<th scope="row">1</th><td data-label="b" class="number"><span>2</span></td>' in wide
    assert '<table class="narrow">' in table(["a", "x<sub>0</sub>"], [["1", "2"]])
    assert 'data-label="x0"' in table(["a", "x<sub>0</sub>"], [["1", "2"]])


def test_pieces_are_put_together():
    assert figure("data:,", "a <b>b</b>", "c").count("<figcaption>c</figcaption>") == 1
    assert 'alt="a b"' in figure("data:,", "a <b>b</b>")
    assert paragraph("a", "note") == '<p class="note">a</p>'
    assert section("s", "t", side_by_side("a", "b", small=True)).startswith('<section id="s"><h2>t</h2>')


def test_the_files_of_the_page_are_shipped_and_load_nothing():
    for name in ("template.html", "page.css", "page.js"):
        text = resource(name)
        assert "://" not in text
        assert "@import" not in text
        assert "url(" not in text
    assert "</script" not in resource("page.js")
