//! Tables like those of ps(1).

/// Aligns columns to their widest cell and truncates lines to `width`.
pub(crate) fn table(rows: &[impl AsRef<[String]>], width: Option<usize>) -> String {
    let mut widths = vec![0; rows.first().map_or(0, |row| row.as_ref().len())];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row.as_ref()) {
            *width = cell.chars().count().max(*width);
        }
    }
    rows.iter().map(|row| truncate(&line(row.as_ref(), &widths), width) + "\n").collect()
}

fn line(row: &[String], widths: &[usize]) -> String {
    let cells: Vec<_> = row.iter().zip(widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
    cells.join("  ").trim_end().to_owned()
}

fn truncate(line: &str, width: Option<usize>) -> String {
    match width {
        Some(width) if line.chars().count() > width => {
            line.chars().take(width.saturating_sub(1)).chain(['…']).collect()
        }
        _ => line.to_owned(),
    }
}

/// One line per field that has a value.
pub(crate) fn fields<const N: usize>(fields: [(&str, String); N]) -> String {
    let shown = fields.into_iter().filter(|(_, value)| !value.is_empty());
    // text from an agent must not contain escape sequences
    shown.map(|(key, value)| format!("{:14}{}\n", format!("{key}:"), value.replace(char::is_control, " "))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> [[String; 3]; 3] {
        [["ID", "STATE", "COMMAND"], ["a-long-id", "é", "sleep 300"], ["b", "running", ""]]
            .map(|row| row.map(str::to_owned))
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let expected = "\
ID         STATE    COMMAND
a-long-id  é        sleep 300
b          running
";
        assert_eq!(table(&rows(), None), expected);
        assert_eq!(table(&rows(), Some(29)), expected);
    }

    #[test]
    fn lines_are_cut_to_the_width() {
        let expected = "\
ID         STATE    COMMAND
a-long-id  é        sleep 3…
b          running
";
        assert_eq!(table(&rows(), Some(28)), expected);
        assert_eq!(table(&rows(), Some(1)), "…\n…\n…\n");
    }
}
