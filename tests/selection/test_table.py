from orbitwise.selection.table import ResultTable


def test_a_table_prints_as_text_with_numbers_to_the_right():
    table = ResultTable("Scores", ("name", "score", "note"), words=("note",), caption="All of them.")
    table.add_row("a", "1.0", "b")
    table.add_row("longer", "100.0", "c d")
    lines = str(table).splitlines()
    assert lines[0].strip() == "Scores"
    assert "│ a      │   1.0 │ b    │" in str(table)
    assert lines[-1].strip() == "All of them."
