//! What a word of a text comes to when a shell expands it: which is not always one word.

/// The words of a command.
pub(super) type Words = Vec<Expansion>;

/// What is known of an expanded word. Where one word is expected, only the first two may stand: what comes after any
/// number of words stands at an unknown place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expansion {
    /// This word.
    Known(String),
    /// Exactly one, which begins with this.
    One(String),
    /// At most one, of digits or empty: `$!` and the like.
    Digits,
    /// None, one or several plain words, if these variables are plain: `$x`
    Plain(Vec<String>),
    /// None, one or several: `$x`, `"$@"`, `*`, `{a,b}`.
    Any,
}

impl Expansion {
    pub(super) fn known(&self) -> Option<&str> {
        match self {
            Self::Known(word) => Some(word),
            _ => None,
        }
    }

    pub(super) fn is(&self, word: &str) -> bool {
        self.known() == Some(word)
    }

    /// It is one word that begins so.
    pub(super) fn starts_with(&self, c: char) -> bool {
        matches!(self, Self::Known(start) | Self::One(start) if start.starts_with(c))
    }

    /// It is a path, known or by its beginning.
    pub(super) fn is_path(&self) -> bool {
        matches!(self, Self::One(start) if start.starts_with('/') || start.starts_with("./"))
    }

    pub(super) fn is_one(&self) -> bool {
        matches!(self, Self::Known(_) | Self::One(_))
    }

    /// It could be an option, as far as that is known.
    pub(super) fn may_be_option(&self) -> bool {
        match self {
            Self::Known(word) => word.len() > 1 && word.starts_with('-'),
            Self::One(start) => start.is_empty() || start.starts_with('-'),
            Self::Digits | Self::Plain(_) | Self::Any => true,
        }
    }

    /// The name in `NAME=value`, where the value need not be known.
    pub(super) fn assigned(&self) -> Option<&str> {
        match self {
            Self::Known(word) | Self::One(word) => Some(word.split_once('=')?.0),
            Self::Digits | Self::Plain(_) | Self::Any => None,
        }
    }

    /// Both without a space between.
    pub(super) fn followed_by(self, next: Self) -> Self {
        match (self, next) {
            (Self::Any | Self::Plain(_), _) | (_, Self::Any | Self::Plain(_)) => Self::Any,
            (Self::Known(start), Self::Known(end)) => Self::Known(start + &end),
            (Self::Known(start), Self::One(end)) => Self::One(start + &end),
            (Self::Known(text), Self::Digits) | (Self::Digits, Self::Known(text)) if text.is_empty() => Self::Digits,
            (Self::Known(start), Self::Digits) | (Self::One(start), _) => Self::One(start),
            (Self::Digits, Self::Digits) => Self::Digits,
            (Self::Digits, Self::Known(_) | Self::One(_)) => Self::One(String::new()),
        }
    }

    /// Other text comes to stand where the mark is.
    pub(super) fn with_replaced(self, mark: &str) -> Self {
        match self {
            Self::Known(word) => match word.split_once(mark) {
                Some((start, _)) => Self::One(start.to_owned()),
                None => Self::Known(word),
            },
            // the mark may continue in what is not known
            Self::One(mut start) => {
                start.truncate(mark.chars().next().map_or(Some(0), |first| start.find(first)).unwrap_or(start.len()));
                Self::One(start)
            }
            Self::Plain(_) => Self::Any,
            other => other,
        }
    }
}
