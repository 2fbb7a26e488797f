//! Runs a command on an agent: `cargo run --example execute -- unix:///run/telexec/agent.sock 'uname -a'`.

use futures_util::StreamExt;
use telexec_client::{Agent, ConnectOptions};
use telexec_tool::{Command, Event, Executor};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (target, text) = arguments.next().zip(arguments.next()).ok_or("usage: execute TARGET TEXT")?;
    let agent = Agent::connect(&target.parse()?, ConnectOptions::default()).await?;
    let mut execution = agent.executor().execute(Command::shell(text).build()?).await?;
    while let Some(event) = execution.next().await {
        match event? {
            Event::Started(started) => println!("{}", started.id),
            Event::Output(output) => print!("{}", String::from_utf8_lossy(&output.data)),
            Event::Exited(exited) => println!("exit code {}", exited.exit_code()),
            // it neither goes to the background nor is attached to
            Event::Promoted | Event::Gap(_) => {}
        }
    }
    Ok(())
}
