mod hostile;
mod not_understood;
mod understood;

use super::walk::{EVALUATED as VALUE, SYNTAX_ERROR};
use super::*;

const ARGUMENT: &str = "bash evaluates an argument";
const BUILTIN: &str = "a builtin changes what runs";
const DECIDES: &str = "a variable that decides what runs, such as PATH, is set or unset";
const EVAL: &str = "eval runs its arguments as shell text";
const FIND: &str = "the arguments of find are not known: quote them, as in \"$x\"";
const ONLY_BASH: &str = "it has a command or assignment that not every shell has";
const PROGRAM: &str = "a program's name is not known";
const SCRIPT: &str = "a script is read into the shell";
const SHELL: &str = "a shell runs a script, its input or a text that is not known";
const TRAP: &str = "the text of a trap is not known";
const UNREAD: &str = "a substitution, quotes or a here-document could not be read";
const UNQUOTED: &str = "an expansion without quotes may come to options: quote it, as in \"$x\"";
const WRAPPER: &str = "what a wrapper such as env, sudo, timeout or xargs runs is not known";
