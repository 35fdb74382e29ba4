//! A library for `LD_PRELOAD`, compiled when it is needed: a wall clock that can be set while a process runs, and
//! randomness that fails.
#![allow(clippy::unwrap_used)] // test code, outside of test functions

use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
};

use quorlock::testing::{Server, ServerBuilder};

/// One clock, for all processes that are started with it.
pub struct Preload {
    dir: PathBuf,
}

impl Preload {
    /// `None`, having said why, where it cannot be compiled.
    pub fn new() -> Option<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("quorlock-preload-{}-{count}", std::process::id());
        let preload = Self { dir: std::env::temp_dir().join(name) };
        fs::create_dir(&preload.dir).unwrap();
        preload.set_clock(0);
        // In one process of its own: what is to be executed must be open for writing nowhere else.
        let mut shell = Command::new("sh");
        shell
            .args(["-c", BUILD, "sh"])
            .arg(&preload.dir)
            .stdin(Stdio::piped())
            .stderr(Stdio::null());
        let mut shell = shell.spawn().unwrap();
        shell.stdin.take().unwrap().write_all(include_bytes!("preload.c")).unwrap();
        let built = cfg!(target_os = "linux") && shell.wait().unwrap().success();
        if !built {
            eprintln!("skipped: there is no C compiler to build a library to preload with");
        }
        built.then_some(preload)
    }

    /// Sets the wall clock so many seconds ahead of the true time, or behind it.
    pub fn set_clock(&self, secs: i64) {
        // In place, and never shorter: others have mapped it.
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(self.clock());
        file.unwrap().write_all(&secs.to_ne_bytes()).unwrap();
    }

    /// A server that goes by this clock.
    pub fn server(&self) -> ServerBuilder {
        Server::builder().binary(self.dir.join("server"))
    }

    /// Has a command go by this clock.
    pub fn apply<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("LD_PRELOAD", self.dir.join("preload.so")).env("PRELOAD_CLOCK", self.clock())
    }

    fn clock(&self) -> PathBuf {
        self.dir.join("clock")
    }
}

impl Drop for Preload {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

const BUILD: &str = r#"
    ${CC:-cc} -shared -fPIC -O1 -x c -o "$1/preload.so" - || exit
    cat > "$1/server" <<END
#!/bin/sh
export LD_PRELOAD="$1/preload.so" PRELOAD_CLOCK="$1/clock"
exec "\${QUORLOCK_SERVER:-\$(command -v redis-server || command -v valkey-server)}" "\$@"
END
    chmod +x "$1/server"
"#;
