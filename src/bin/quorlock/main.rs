//! The `quorlock` command.
//!
//! It is built on the library's public interface alone, with one rule of its own: `main` returns, and nothing
//! here ends the process, so that a lock that is held is released on every way out.

#![forbid(unsafe_code)]

mod args;
mod child;
mod demo;
mod duration;
mod exec;
mod exit;
mod patience;
mod run;
mod say;
mod signals;
mod status;
mod supervise;
mod terminal;

use std::{
    ffi::OsString,
    io::{Write, stdout},
    process::ExitCode,
};

use self::{
    args::{Cli, Command, Parsed},
    exit::Failure,
    say::say,
};

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    let code = dispatch(&args).unwrap_or_else(|Failure { code, message }| {
        say(message.trim_end());
        code
    });
    ExitCode::from(code)
}

fn dispatch(args: &[OsString]) -> Result<u8, Failure> {
    // Ourselves again, started by `run`: not for people, so not in the help.
    match args.get(1).and_then(|arg| arg.to_str()) {
        Some(exec::SUBCOMMAND) => return exec::main(&args[2..]),
        Some(terminal::SUBCOMMAND) => return terminal::main(&args[2..]),
        _ => {}
    }
    match Cli::parse_args(args)? {
        Parsed::Command(Command::Run(options)) => run::main(&options),
        Parsed::Command(Command::Status(options)) => status::main(&options),
        Parsed::Command(Command::Demo(options)) => demo::main(&options),
        Parsed::Answer(text) => {
            stdout().write_all(text.as_bytes()).map_err(Failure::system)?;
            Ok(0)
        }
    }
}
