//! What was most likely meant by a name that is unknown.

/// Less similar names are not suggested: jaro_winkler, from 0 to 1.
const MIN_SIMILARITY: f64 = 0.85;
/// Longer names are compared with none.
const MAX_BYTES: usize = 100;

/// The known name that is most like this one, if any is.
pub(crate) fn similar<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if unknown.len() > MAX_BYTES {
        return None;
    }
    let unknown = unknown.to_lowercase();
    let similarities = known.into_iter().map(|name| (strsim::jaro_winkler(&unknown, &name.to_lowercase()), name));
    let similar = similarities.filter(|(similarity, _)| *similarity >= MIN_SIMILARITY);
    Some(similar.max_by(|(one, _), (other, _)| one.total_cmp(other))?.1)
}

/// The same for an error: ` (did you mean "NAME"?)`, or nothing.
pub(crate) fn suggestion<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    similar(unknown, known).map(did_you_mean).unwrap_or_default()
}

/// The same for names that somebody has chosen, with one letter that is wrong, missing, too many or swapped: another one that is
/// similar, or has another number, may well exist and mean something else.
pub(crate) fn misspelled<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let letters = |name: &str| name.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
    let is_near = |name: &&str| {
        name.len().abs_diff(unknown.len()) <= 1
            && name.len() > 2
            && strsim::osa_distance(unknown, name) == 1
            && letters(unknown) != letters(name)
    };
    known.into_iter().find(is_near).map(did_you_mean).unwrap_or_default()
}

fn did_you_mean(name: &str) -> String {
    format!(" (did you mean {name:?}?)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_similar_is_suggested() {
        let actions = ["read", "start", "Execute", "Run", "SignalExecution"];
        assert_eq!(similar("strat", actions), Some("start"));
        assert_eq!(similar("exec", actions), Some("Execute"));
        assert_eq!(similar("signal", actions), Some("SignalExecution"));
        assert_eq!(suggestion("write", actions), "");
        assert_eq!(suggestion("strat", actions), " (did you mean \"start\"?)");
        assert_eq!(misspelled("deployer", ["deployers", "db-operators"]), " (did you mean \"deployers\"?)");
        assert_eq!(misspelled("gret", ["greet"]), " (did you mean \"greet\"?)");
        for (unknown, known) in [("db-operators", "web-operators"), ("web1", "web2"), ("web1", "web11"), ("a", "b")] {
            assert_eq!(misspelled(unknown, [known]), "", "{unknown}");
        }
    }
}
