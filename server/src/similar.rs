//! What was most likely meant by a name that is unknown.

/// Less similar names are not suggested: jaro_winkler, from 0 to 1.
const MIN_SIMILARITY: f64 = 0.85;

/// The known name that is most like this one, if any is.
pub(crate) fn similar<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let unknown = unknown.to_lowercase();
    let similarities = known.into_iter().map(|name| (strsim::jaro_winkler(&unknown, &name.to_lowercase()), name));
    let similar = similarities.filter(|(similarity, _)| *similarity >= MIN_SIMILARITY);
    Some(similar.max_by(|(one, _), (other, _)| one.total_cmp(other))?.1)
}

/// The same as the end of a message: `: did you mean "NAME"?`, or nothing.
pub(crate) fn suggestion<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    similar(unknown, known).map(|name| format!(": did you mean {name:?}?")).unwrap_or_default()
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
        assert_eq!(suggestion("deployer", ["deployers"]), ": did you mean \"deployers\"?");
    }
}
