//! What is found in a text.

/// What a walk comes to, in the order of the text.
pub(super) enum Item {
    Command(super::SimpleCommand),
    /// A text that a shell runs as well.
    Text(Reader, String),
    Mark(Mark),
    /// A file is opened.
    Redirection(super::Redirection),
    /// A variable of the shell gets a value.
    Assigned(String),
    /// The value that it gets is a number.
    Number(String),
    /// The value that it gets is plain if those of these are.
    Plain(String, Vec<String>),
    /// The value that it gets is that of `IFS`.
    Separators(String),
    /// `IFS` gets the value of this variable.
    Restored(String),
    /// All values of this variable must be plain.
    Relied(String),
    /// A variable is an operand of an arithmetic expression: bash evaluates its value.
    Operand(String),
    /// A variable of the environment of programs gets a value.
    Exported(String),
    /// A variable is an array.
    Array(String),
    /// An array has keys that are no numbers.
    Associative(String),
    /// The value that a variable gets is a key of this array.
    Key(String, String),
    /// A declaration gives a variable a value that is not known; for an array, bash would evaluate it.
    Declared(String),
    /// Why not all is understood.
    Unknown(&'static str),
}

/// Which shell reads a text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    Bash,
    /// bash, dash or another: what they read alike.
    Posix,
}

/// What only matters together with something else, maybe of another text.
#[derive(Clone, Copy)]
pub(super) enum Mark {
    /// The locale is set.
    Locale,
    /// The directory of startup files is set.
    Home,
    /// A shell runs, which may read startup files.
    Shell,
    /// Positional parameters are given.
    Positional,
    /// While a command reads, words are split by something else.
    Split,
    /// A text runs at any time.
    Trap,
}
