//! The load: each phase prints its result as numbers on one line.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use tokio::io::Interest;
use tokio::net::{TcpStream, UdpSocket};
use tokio::task::JoinSet;

const QUESTION: [u8; 64] = [7; 64];

pub fn run(phase: &str, address: &str, seconds: f64) {
    let address: SocketAddr = address.parse().unwrap();
    let length = Duration::from_secs_f64(seconds);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async move {
        match phase {
            "connects" => rate(32, length, move |end| connects(address, end)).await,
            "requests" => rate(64, length, move |end| requests(address, end)).await,
            "bytes-1" => rate(1, length, move |end| bytes(address, end)).await,
            "bytes-64" => rate(64, length, move |end| bytes(address, end)).await,
            "datagrams" => rate(16, length, move |end| datagrams(address, end)).await,
            "latency" => latency(address, length).await,
            "idle" => idle(address, seconds as usize).await,
            other => panic!("unknown phase {other}"),
        }
    });
}

/// Runs `tasks` tasks for `length`, and prints the sum of their counts per second.
async fn rate<F>(tasks: usize, length: Duration, task: impl Fn(Instant) -> F)
where
    F: Future<Output = u64> + Send + 'static,
{
    let begun = Instant::now();
    let mut all = JoinSet::new();
    for _ in 0..tasks {
        all.spawn(task(begun + length));
    }
    let total: u64 = all.join_all().await.into_iter().sum();
    println!("{}", total as f64 / begun.elapsed().as_secs_f64());
}

async fn connects(address: SocketAddr, end: Instant) -> u64 {
    let mut count = 0;
    while Instant::now() < end {
        if let Ok(stream) = TcpStream::connect(address).await
            && ask(&stream).await.is_ok()
        {
            count += 1;
        }
    }
    count
}

async fn requests(address: SocketAddr, end: Instant) -> u64 {
    let stream = connect(address).await;
    let mut count = 0;
    while Instant::now() < end {
        ask(&stream).await.unwrap();
        count += 1;
    }
    count
}

/// Counts received bytes without copying them to this process: the kernel discards them (MSG_TRUNC).
async fn bytes(address: SocketAddr, end: Instant) -> u64 {
    let stream = connect(address).await;
    let mut count = 0;
    while Instant::now() < end {
        let _ = tokio::time::timeout_at(end.into(), stream.readable()).await;
        let read = stream.try_io(Interest::READABLE, || {
            let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
            // SAFETY: with MSG_TRUNC, TCP discards data and writes nothing.
            let length = unsafe { libc::recv(stream.as_raw_fd(), std::ptr::null_mut(), 1 << 20, flags) };
            usize::try_from(length).map_err(|_| io::Error::last_os_error())
        });
        match read {
            Ok(0) => panic!("the stream ended"),
            Ok(length) => count += length as u64,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
    count
}

/// Sends bursts of 32 datagrams. A datagram whose answer does not arrive in time counts as lost.
async fn datagrams(address: SocketAddr, end: Instant) -> u64 {
    let socket = UdpSocket::bind("0.0.0.0:0").await.unwrap();
    socket.connect(address).await.unwrap();
    socket.writable().await.unwrap();
    let mut buffer = [0; 256];
    let mut count = 0;
    while Instant::now() < end {
        let mut waiting = 0;
        for _ in 0..32 {
            waiting += usize::from(socket.try_send(&QUESTION).is_ok());
        }
        let deadline = Instant::now() + Duration::from_millis(20);
        while waiting > 0 {
            match socket.try_recv(&mut buffer) {
                Ok(_) => (count, waiting) = (count + 1, waiting - 1),
                Err(_) => match tokio::time::timeout_at(deadline.into(), socket.readable()).await {
                    Ok(_) => {}
                    Err(_) => break,
                },
            }
        }
    }
    count
}

/// Prints the median and the 99th percentile in microseconds.
async fn latency(address: SocketAddr, length: Duration) {
    let stream = connect(address).await;
    let mut times = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < length {
        let asked = Instant::now();
        ask(&stream).await.unwrap();
        times.push(asked.elapsed().as_nanos() as f64 / 1000.0);
    }
    times.sort_by(f64::total_cmp);
    let at = |part: usize| times[(times.len() - 1) * part / 100];
    println!("{} {}", at(50), at(99));
}

/// Opens `count` connections, prints their number, and keeps them open until stdin ends.
async fn idle(address: SocketAddr, count: usize) {
    let mut streams = Vec::with_capacity(count);
    while streams.len() < count {
        let mut some = JoinSet::new();
        for _ in 0..200.min(count - streams.len()) {
            some.spawn(async move {
                let stream = connect(address).await;
                ask(&stream).await.unwrap();
                stream
            });
        }
        streams.extend(some.join_all().await);
    }
    println!("{}", streams.len());
    let mut line = String::new();
    let _ = io::stdin().read_line(&mut line);
}

async fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

async fn ask(stream: &TcpStream) -> io::Result<()> {
    stream.try_write(&QUESTION)?;
    let mut buffer = [0; 64];
    let mut received = 0;
    while received < QUESTION.len() {
        stream.readable().await?;
        match stream.try_read(&mut buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => received += length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
