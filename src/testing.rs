//! Real servers for tests: started on demand, never left behind.
//!
//! ```
//! use quorlock::{LocalLocker, testing::Servers};
//!
//! let mut servers = Servers::start(3)?;
//! let locker = LocalLocker::connect(servers.tcp_urls())?;
//! servers[0].pause()?;
//! assert!(locker.lock("r").try_acquire().is_ok());
//! servers[1].pause()?;
//! assert!(locker.lock("r").try_acquire().is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Each server has a directory of its own, a Unix socket in it, and a free port on loopback. It runs under a
//! shell that waits for a pipe from this process to close: when the process ends, in whatever way, the server
//! is killed and its directory removed.

use std::{
    ffi::OsString,
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, TcpListener},
    ops::{Deref, DerefMut},
    os::unix::{
        fs::{DirBuilderExt, FileTypeExt},
        net::UnixStream,
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// How a server is started.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until the server is started"]
pub struct ServerBuilder {
    binary: Option<PathBuf>,
    args: Vec<OsString>,
    persistent: bool,
}

/// A running `redis-server` or `valkey-server`. Dropping it kills the server and removes its directory.
#[derive(Debug)]
pub struct Server {
    binary: PathBuf,
    args: Vec<OsString>,
    dir: PathBuf,
    port: u16,
    /// The server's process, while it runs.
    process: Option<Process>,
    /// Sees to the server and the directory should we be gone. There is one from the first start on.
    shell: Option<Child>,
}

/// Several servers. Derefs to a slice of them.
#[derive(Debug)]
pub struct Servers {
    servers: Vec<Server>,
}

/// What becomes of a server's data when it is restarted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[allow(clippy::exhaustive_enums)] // there is no third way
pub enum Data {
    /// What was written to disk is loaded again: with [`ServerBuilder::persistent`], everything.
    Keep,
    /// The server has forgotten everything.
    Wipe,
}

/// A server's answer to [`Server::command`].
#[derive(Clone, Debug, Eq, PartialEq)]
#[allow(clippy::exhaustive_enums)] // these are all that RESP2 has
pub enum Answer {
    /// An array.
    Array(Vec<Self>),
    /// An error's text.
    Error(String),
    /// An integer.
    Integer(i64),
    /// The null of a bulk or an array.
    Null,
    /// A bulk or a simple string, as far as it is UTF-8.
    Text(String),
}

#[derive(Clone, Copy, Debug)]
struct Process {
    pid: Pid,
}

impl ServerBuilder {
    /// Starts this program instead of the one that would be found.
    pub fn binary(mut self, binary: impl Into<PathBuf>) -> Self {
        self.binary = Some(binary.into());
        self
    }

    /// Sets a directive of the server's configuration: `config("maxclients", "1")`.
    pub fn config(mut self, directive: &str, value: &str) -> Self {
        self.args.extend([format!("--{directive}").into(), value.into()]);
        self
    }

    /// Whether it writes what it is told to disk (append-only file, once a second), so that a
    /// [`restart`](Server::restart) can keep it. By default it does not.
    pub fn persistent(mut self, persistent: bool) -> Self {
        self.persistent = persistent;
        self
    }

    /// Starts it, and waits until it answers and has loaded what data there is.
    ///
    /// # Errors
    ///
    /// If no server program is found, or it does not answer within 10 s: then with the end of its log.
    pub fn start(self) -> io::Result<Server> {
        let binary = self.binary.map_or_else(find_binary, Ok)?;
        let append_only = if self.persistent { "yes" } else { "no" };
        let mut args: Vec<OsString> = Vec::new();
        args.extend(["--appendonly", append_only, "--appendfsync", "everysec"].map(Into::into));
        args.extend(["--save", ""].map(Into::into));
        // Last, as the last of two counts.
        args.extend(self.args);
        let dir = new_dir()?;
        let mut server = Server { binary, args, dir, port: 0, process: None, shell: None };
        for _ in 0..PORTS_TRIED_MAX {
            server.port = free_port()?;
            match server.run() {
                // Somebody took the port in between.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
                Ok(()) => return Ok(server),
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "no free port was found"))
    }
}

impl Server {
    /// Starts a server without persistence.
    ///
    /// # Errors
    ///
    /// As [`ServerBuilder::start`].
    pub fn start() -> io::Result<Self> {
        Self::builder().start()
    }

    /// The server is the program in the environment's `QUORLOCK_SERVER`, or else the `redis-server` or
    /// `valkey-server` on the `PATH`.
    pub fn builder() -> ServerBuilder {
        ServerBuilder { binary: None, args: Vec::new(), persistent: false }
    }

    /// `redis://127.0.0.1:port`.
    pub fn tcp_url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// `unix:/path`.
    pub fn unix_url(&self) -> String {
        format!("unix:{}", self.socket_path().display())
    }

    /// The port on 127.0.0.1, and on ::1 where there is IPv6. Kept over restarts.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where its Unix socket is. Kept over restarts.
    pub fn socket_path(&self) -> PathBuf {
        self.dir.join("s")
    }

    /// The server's process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        let process = self.process?;
        u32::try_from(process.pid.as_raw_nonzero().get()).ok()
    }

    /// Kills it as a power cut would kill its process (`SIGKILL`), and waits until it is gone.
    ///
    /// # Errors
    ///
    /// If it will not go.
    pub fn kill(&mut self) -> io::Result<()> {
        self.end(Signal::KILL)
    }

    /// Asks it to end (`SIGTERM`), and waits until it has.
    ///
    /// # Errors
    ///
    /// If it does not end within 10 s.
    pub fn terminate(&mut self) -> io::Result<()> {
        self.end(Signal::TERM)
    }

    /// Stops its process (`SIGSTOP`): the system goes on taking connections and data for it, and nothing is
    /// answered.
    ///
    /// # Errors
    ///
    /// If it does not run.
    pub fn pause(&self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on after a [`pause`](Self::pause).
    ///
    /// # Errors
    ///
    /// If it does not run.
    pub fn resume(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Starts it again, on the same port and socket. A server that still runs is killed first.
    ///
    /// # Errors
    ///
    /// As [`ServerBuilder::start`].
    pub fn restart(&mut self, data: Data) -> io::Result<()> {
        self.kill()?;
        if data == Data::Wipe {
            for entry in fs::read_dir(&self.dir)? {
                let entry = entry?;
                match entry.file_type()? {
                    kind if kind.is_dir() => fs::remove_dir_all(entry.path())?,
                    kind if kind.is_socket() => {}
                    _ => fs::remove_file(entry.path())?,
                }
            }
        }
        self.run()
    }

    /// Whether its process is there, paused or not.
    pub fn is_running(&self) -> bool {
        self.process.is_some_and(Process::is_alive)
    }

    /// Asks it something, apart from any locker.
    ///
    /// ```
    /// use quorlock::testing::{Answer, Server};
    ///
    /// let server = Server::start()?;
    /// server.command(&["SET", "k", "v"])?;
    /// assert_eq!(server.command(&["GET", "k"])?, Answer::Text("v".into()));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If it does not answer within 5 s.
    pub fn command(&self, args: &[&str]) -> io::Result<Answer> {
        let mut stream = UnixStream::connect(self.socket_path())?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        let mut request = format!("*{}\r\n", args.len());
        for arg in args {
            request.push_str(&format!("${}\r\n{arg}\r\n", arg.len()));
        }
        stream.write_all(request.as_bytes())?;
        Answer::read(&mut BufReader::new(stream))
    }

    /// What a string key holds, if there is one.
    ///
    /// # Errors
    ///
    /// As [`command`](Self::command), and if the server answers with an error.
    pub fn get(&self, key: &str) -> io::Result<Option<String>> {
        match self.command(&["GET", key])? {
            Answer::Text(value) => Ok(Some(value)),
            Answer::Null => Ok(None),
            answer => Err(io::Error::other(format!("GET {key}: {answer:?}"))),
        }
    }

    fn run(&mut self) -> io::Result<()> {
        self.dismiss_shell()?;
        let mut shell = self.shell().spawn()?;
        let pid = read_pid(&mut shell)?;
        self.process = Some(Process { pid });
        self.shell = Some(shell);
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            // A refusal is an answer too.
            match self.command(&["PING"]) {
                Ok(Answer::Error(text)) if text.starts_with("LOADING") => {}
                Ok(_) => return Ok(()),
                Err(_) => {}
            }
            if !self.is_running() || Instant::now() > deadline {
                self.kill()?;
                return Err(self.failure());
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn shell(&self) -> Command {
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(WATCH).arg("quorlock-server").arg(&self.dir).arg(&self.binary);
        shell.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"]);
        if has_ipv6() {
            shell.arg("::1");
        }
        shell.arg("--unixsocket").arg(self.socket_path()).arg("--dir").arg(&self.dir);
        shell.args(["--logfile", "log", "--daemonize", "no"]).args(&self.args);
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // Apart from our group: a Ctrl-C at the terminal is for us, and we see to the server.
        shell.process_group(0);
        shell
    }

    fn failure(&self) -> io::Error {
        let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        let lines: Vec<_> = log.lines().rev().take(5).collect();
        let tail = lines.into_iter().rev().collect::<Vec<_>>().join("\n");
        let kind = if log.contains("Address already in use") {
            io::ErrorKind::AddrInUse
        } else {
            io::ErrorKind::Other
        };
        io::Error::new(kind, format!("{} does not start: {tail}", self.binary.display()))
    }

    fn end(&mut self, signal: Signal) -> io::Result<()> {
        let Some(process) = self.process else {
            return Ok(());
        };
        if process.is_alive() {
            let _ = kill_process(process.pid, signal);
            // A process that is stopped acts on no other signal than KILL.
            let _ = kill_process(process.pid, Signal::CONT);
        }
        let deadline = Instant::now() + END_TIMEOUT;
        while process.is_alive() {
            if Instant::now() > deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the server does not end"));
            }
            thread::sleep(Duration::from_millis(1));
        }
        self.process = None;
        self.tell_shell("bury")
    }

    /// The directory is ours again, to use or to remove.
    fn dismiss_shell(&mut self) -> io::Result<()> {
        self.tell_shell("keep")?;
        self.shell.take().map_or(Ok(()), |mut shell| shell.wait().map(drop))
    }

    fn tell_shell(&mut self, word: &str) -> io::Result<()> {
        let stdin = self.shell.as_mut().and_then(|shell| shell.stdin.as_mut());
        stdin.map_or(Ok(()), |stdin| stdin.write_all(format!("{word}\n").as_bytes()))
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        let process = self.process.filter(|process| process.is_alive());
        let process = process.ok_or_else(|| io::Error::other("the server does not run"))?;
        Ok(kill_process(process.pid, signal)?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.end(Signal::KILL);
        let _ = self.dismiss_shell();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Servers {
    /// Starts so many servers without persistence.
    ///
    /// # Errors
    ///
    /// As [`ServerBuilder::start`].
    pub fn start(count: usize) -> io::Result<Self> {
        Self::start_each(count, Server::builder())
    }

    /// Starts so many servers, each as `builder` says.
    ///
    /// # Errors
    ///
    /// As [`ServerBuilder::start`].
    pub fn start_each(count: usize, builder: ServerBuilder) -> io::Result<Self> {
        let servers = (0..count).map(|_| builder.clone().start()).collect::<io::Result<_>>()?;
        Ok(Self { servers })
    }

    /// The TCP URLs of all of them, in order.
    pub fn tcp_urls(&self) -> Vec<String> {
        self.iter().map(Server::tcp_url).collect()
    }

    /// The Unix URLs of all of them, in order.
    pub fn unix_urls(&self) -> Vec<String> {
        self.iter().map(Server::unix_url).collect()
    }
}

impl Deref for Servers {
    type Target = [Server];

    fn deref(&self) -> &[Server] {
        &self.servers
    }
}

impl DerefMut for Servers {
    fn deref_mut(&mut self) -> &mut [Server] {
        &mut self.servers
    }
}

impl Process {
    /// Nobody waits for the server but a shell that does not, so it may be there as a zombie, which a signal
    /// would still reach.
    fn is_alive(self) -> bool {
        if rustix::process::test_kill_process(self.pid).is_err() {
            return false;
        }
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero()));
        match stat {
            Ok(stat) => !stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")),
            // No such file, or no such file system.
            Err(_) => !Path::new("/proc/self/stat").exists(),
        }
    }
}

impl Answer {
    /// Reads RESP2, trusting the server: this is for tests. The product's decoder does not.
    fn read(from: &mut impl BufRead) -> io::Result<Self> {
        let bad = || io::Error::new(io::ErrorKind::InvalidData, "not an answer");
        let mut line = String::new();
        from.read_line(&mut line)?;
        let line = line.strip_suffix("\r\n").ok_or_else(bad)?;
        let (sign, text) = line.split_at_checked(1).ok_or_else(bad)?;
        let number = || text.parse::<i64>().map_err(|_| bad());
        match sign {
            "+" => Ok(Self::Text(text.into())),
            "-" => Ok(Self::Error(text.into())),
            ":" => Ok(Self::Integer(number()?)),
            "$" | "*" if text == "-1" => Ok(Self::Null),
            "$" => {
                let len = usize::try_from(number()?).map_err(|_| bad())?;
                let mut bytes = vec![0; len + 2];
                from.read_exact(&mut bytes)?;
                Ok(Self::Text(String::from_utf8_lossy(&bytes[..len]).into_owned()))
            }
            "*" => {
                Ok(Self::Array((0..number()?).map(|_| Self::read(from)).collect::<Result<_, _>>()?))
            }
            _ => Err(bad()),
        }
    }
}

fn find_binary() -> io::Result<PathBuf> {
    if let Some(binary) = std::env::var_os("QUORLOCK_SERVER").filter(|path| !path.is_empty()) {
        return Ok(binary.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["redis-server", "valkey-server"];
    let candidates = names.iter().flat_map(|name| {
        std::env::split_paths(&path).map(move |dir| dir.join(name)).collect::<Vec<_>>()
    });
    candidates.into_iter().find(|candidate| candidate.is_file()).ok_or_else(|| {
        let text = "neither redis-server nor valkey-server is on the PATH, and QUORLOCK_SERVER is not set \
                    (`make setup` installs one)";
        io::Error::new(io::ErrorKind::NotFound, text)
    })
}

/// A directory of our own with a path so short that a Unix socket fits in.
fn new_dir() -> io::Result<PathBuf> {
    let mut random = [0; 8];
    getrandom::fill(&mut random)?;
    let name = format!("quorlock-{:016x}", u64::from_le_bytes(random));
    let dir = std::env::temp_dir().join(&name);
    let fits = dir.as_os_str().len() < SOCKET_DIR_LEN_MAX;
    let dir = if fits { dir } else { Path::new("/tmp").join(name) };
    fs::DirBuilder::new().mode(0o700).create(&dir)?;
    Ok(dir)
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

fn has_ipv6() -> bool {
    TcpListener::bind("[::1]:0").is_ok()
}

fn read_pid(shell: &mut Child) -> io::Result<Pid> {
    let mut line = String::new();
    if let Some(stdout) = &mut shell.stdout {
        BufReader::new(stdout.take(32)).read_line(&mut line)?;
    }
    let pid = line.trim().parse().ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("the shell did not start the server"))
}

/// Starts the server, says its pid, and outlives us by as long as it takes to kill it. The server's pid is
/// nobody else's until the shell has waited for it. With the server buried it goes on to look after the
/// directory, until it is told to keep it.
const WATCH: &str = "
    trap '' INT TERM HUP
    dir=$1
    shift
    \"$@\" </dev/null >/dev/null 2>&1 &
    echo $!
    exec >/dev/null
    read -r word
    kill -9 $!
    wait $!
    [ \"$word\" != bury ] || read -r word
    [ \"$word\" = keep ] || rm -rf \"$dir\"
";

const START_TIMEOUT: Duration = Duration::from_secs(10);
const END_TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A path to a Unix socket has at most 104 to 108 bytes with its end, by system.
const SOCKET_DIR_LEN_MAX: usize = 98;

/// Ports are given out one after the other: that one is taken in between is rare.
const PORTS_TRIED_MAX: u32 = 20;
