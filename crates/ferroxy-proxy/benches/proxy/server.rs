//! The endpoint: echoes on one port, sends as much as it can on another, echoes datagrams on a third.

use std::io;
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream, UdpSocket};

pub const ECHO: u16 = 9001;
pub const SOURCE: u16 = 9002;
pub const DATAGRAMS: u16 = 9003;

pub fn run() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::spawn(listen(ECHO, |stream| {
            tokio::spawn(echo(stream));
        }));
        tokio::spawn(listen(SOURCE, |stream| {
            tokio::spawn(pour(stream));
        }));
        echo_datagrams().await;
    });
}

async fn listen(port: u16, serve: impl Fn(TcpStream)) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(([0, 0, 0, 0], port).into()).unwrap();
    let listener: TcpListener = socket.listen(4096).unwrap();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let _ = stream.set_nodelay(true);
                serve(stream);
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn echo(stream: TcpStream) {
    let mut buffer = [0; 256];
    loop {
        stream.readable().await.unwrap();
        match stream.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => {
                if stream.try_write(&buffer[..length]).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

async fn pour(stream: TcpStream) {
    let buffer = vec![0; 256 * 1024];
    loop {
        if stream.writable().await.is_err() {
            return;
        }
        match stream.try_write(&buffer) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
            _ => tokio::task::yield_now().await,
        }
    }
}

async fn echo_datagrams() {
    let socket = UdpSocket::bind(("0.0.0.0", DATAGRAMS)).await.unwrap();
    let _ = socket2::SockRef::from(&socket).set_recv_buffer_size(8 << 20);
    let mut buffer = vec![0; 65_536];
    loop {
        socket.ready(Interest::READABLE).await.unwrap();
        while let Ok((length, from)) = socket.try_recv_from(&mut buffer) {
            let _ = socket.try_send_to(&buffer[..length], from);
        }
    }
}
