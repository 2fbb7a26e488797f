//! What was most likely meant by a name that is unknown.

/// Less similar names are not suggested: jaro_winkler, from 0 to 1.
const MIN_SIMILARITY: f64 = 0.85;
/// How many letters of a misspelled name are wrong, missing, too many or swapped at most.
const MAX_DISTANCE: usize = 1;

/// The known name that is most like this one, if any is.
pub(crate) fn similar<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let unknown = unknown.to_lowercase();
    let similarities = known.into_iter().map(|name| (strsim::jaro_winkler(&unknown, &name.to_lowercase()), name));
    let similar = similarities.filter(|(similarity, _)| *similarity >= MIN_SIMILARITY);
    Some(similar.max_by(|(one, _), (other, _)| one.total_cmp(other))?.1)
}

/// The same for an error: ` (did you mean "NAME"?)`, or nothing.
pub(crate) fn suggestion<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    similar(unknown, known).map(did_you_mean).unwrap_or_default()
}

/// The same for names that somebody has chosen: another one that is similar may well exist, and mean something else.
pub(crate) fn misspelled<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let near = known.into_iter().map(|name| (strsim::osa_distance(unknown, name), name));
    near.filter(|(distance, _)| *distance <= MAX_DISTANCE).min().map(|(_, name)| did_you_mean(name)).unwrap_or_default()
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
        assert_eq!(misspelled("db-operators", ["web-operators", "db-admins"]), "");
    }
}
