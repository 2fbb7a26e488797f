mod hostile;
mod not_understood;
mod understood;

use super::walk::{EVALUATED as VALUE, SYNTAX_ERROR};
use super::*;

const ARGUMENT: &str = "bash evaluates an argument";
const BUILTIN: &str = "a builtin changes what runs";
const DECIDES: &str = "a variable that decides what runs is set";
const EVAL: &str = "eval makes a text of its arguments";
const FIND: &str = "the arguments of find are not known";
const ONLY_BASH: &str = "it has a command that not every shell has";
const PROGRAM: &str = "a program's name is not known";
const SCRIPT: &str = "a script is read into the shell";
const SHELL: &str = "a shell runs a script or its input";
const TRAP: &str = "the text of a trap is not known";
const UNREAD: &str = "a substitution could not be read";
const UNQUOTED: &str = "an expansion without quotes may come to options: quote it, as in \"$x\"";
const WRAPPER: &str = "what a wrapper runs is not known";
