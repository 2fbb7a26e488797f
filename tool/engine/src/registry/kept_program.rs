//! What is kept of the program of an execution: all of it while that runs, and its beginning after that.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::lock::lock;
use telexec_executor::Program;

/// How much of the text, or of all arguments together, is kept after the end.
pub(crate) const KEPT_BYTES: usize = 4096;

/// A program, of which only the beginning is left once it is [`cut`](Self::cut).
#[derive(Debug)]
pub(crate) struct KeptProgram(Mutex<Arc<Program>>);

impl KeptProgram {
    pub(crate) fn new(program: Program) -> Self {
        Self(Mutex::new(Arc::new(program)))
    }

    /// What is kept of it.
    pub(crate) fn get(&self) -> Arc<Program> {
        Arc::clone(&self.lock())
    }

    /// Keeps its beginning.
    pub(crate) fn cut(&self) {
        let mut program = self.lock();
        if bytes(&program) > KEPT_BYTES {
            *program = Arc::new(beginning(&program));
        }
    }

    /// How many bytes of memory it takes, about.
    pub(crate) fn bytes(&self) -> usize {
        let program = self.lock();
        let arguments = match &**program {
            Program::Shell { .. } => 0,
            Program::Argv(argv) => argv.len(),
        };
        bytes(&program) + arguments * size_of::<String>()
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Program>> {
        lock(&self.0)
    }
}

impl Clone for KeptProgram {
    fn clone(&self) -> Self {
        Self(Mutex::new(self.get()))
    }
}

impl PartialEq for KeptProgram {
    fn eq(&self, other: &Self) -> bool {
        let (one, other) = (self.get(), other.get());
        one == other
    }
}

impl Eq for KeptProgram {}

/// Of its text, or of all arguments.
fn bytes(program: &Program) -> usize {
    match program {
        Program::Shell { text, .. } => text.len(),
        // an empty argument is one too
        Program::Argv(argv) => argv.iter().map(|argument| argument.len().max(1)).sum(),
    }
}

fn beginning(program: &Program) -> Program {
    match program {
        Program::Shell { text, shell, login } => {
            Program::Shell { text: cut(text, KEPT_BYTES), shell: shell.clone(), login: *login }
        }
        Program::Argv(argv) => {
            let mut left = KEPT_BYTES;
            let mut kept = Vec::new();
            for argument in argv {
                if left == 0 {
                    break;
                }
                let argument_kept = cut(argument, left);
                left = left.saturating_sub(argument.len().max(1));
                kept.push(argument_kept);
            }
            Program::Argv(kept)
        }
    }
}

/// A copy, so that the rest is given back.
fn cut(text: &str, bytes: usize) -> String {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_program_is_cut_between_characters() {
        let kept = |program: Program| {
            let kept = KeptProgram::new(program);
            kept.cut();
            Arc::unwrap_or_clone(kept.get())
        };
        let argv = |arguments: &[&str]| Program::Argv(arguments.iter().map(|&argument| argument.to_owned()).collect());
        let text = |text: String| Program::Shell { text, shell: Some("sh".into()), login: true };
        let short = [argv(&["a", "", "b"]), text("x".repeat(KEPT_BYTES))];
        for program in short {
            assert_eq!(kept(program.clone()), program);
        }
        assert_eq!(kept(text("é".repeat(3000))), text("é".repeat(KEPT_BYTES / 2)));
        assert_eq!(kept(text(format!("x{}", "é".repeat(3000)))), text(format!("x{}", "é".repeat(KEPT_BYTES / 2 - 1))));
        let long = "x".repeat(4000);
        assert_eq!(kept(argv(&["a", &long, &long, "b"])), argv(&["a", &long, &long[..95]]));
        let Program::Argv(many) = kept(Program::Argv(vec![String::new(); 10_000])) else { panic!("it is a program") };
        assert_eq!(many.len(), KEPT_BYTES);
    }
}
