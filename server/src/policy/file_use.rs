//! What is done with a file, in policies.

use cedar_policy::RestrictedExpression as Value;

/// What is to be done with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileUse {
    pub(crate) action: FileAction,
    /// In its shortest form, without symbolic links; `None`: it is not UTF-8, or not known.
    pub(crate) path: Option<String>,
    /// The name of the user who opens it; `None`: there is no such user.
    pub(crate) user: Option<String>,
}

impl FileUse {
    /// Its part of the context; see `telexec.cedarschema`.
    pub(super) fn context(&self) -> impl Iterator<Item = (String, Value)> {
        let known = [("path", &self.path), ("user", &self.user)];
        known.into_iter().filter_map(|(name, value)| Some((name.to_owned(), Value::new_string(value.clone()?))))
    }

    /// Why an attribute of the context is missing.
    pub(super) fn why_missing(attribute: &str) -> &'static str {
        match attribute {
            "path" => "the path is not UTF-8, or does not begin with /",
            _ => "there is no such user",
        }
    }
}

/// The actions of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileAction {
    Read,
    Write,
    List,
    Watch,
}

impl FileAction {
    /// Those of transfers, which watch nothing.
    pub(crate) const TRANSFER: [Self; 3] = [Self::Read, Self::Write, Self::List];
    /// The group that they are in.
    pub(super) const GROUP: &str = "files";

    /// Its name in policies.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Read => "ReadFile",
            Self::Write => "WriteFile",
            Self::List => "ListFiles",
            Self::Watch => "WatchFiles",
        }
    }
}
