//! The same tool here and there: `cargo run --example tool -- unix:///run/telexec/agent.sock`. Linux only, for "here".

#[cfg(target_os = "linux")]
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::time::Duration;

    use serde_json::json;
    use telexec_client::{Agent, ConnectOptions};
    use telexec_engine::{LocalConfig, LocalExecutor};
    use telexec_tool::{BashTool, Tool, ToolContext};

    let target = std::env::args().nth(1).ok_or("usage: tool TARGET")?;
    let agent = Agent::connect(&target.parse()?, ConnectOptions::default()).await?;
    let here = BashTool::new(LocalExecutor::new(LocalConfig::default())?);
    let there = BashTool::new(agent.executor()).timeout(Duration::from_secs(30)).deny(["rm -rf /"]);
    for tool in [&here as &dyn Tool, &there] {
        let params = json!({ "command": "cd /tmp; pwd" });
        println!("{}", tool.summary(&params));
        let result = tool.execute(params, ToolContext::default()).await?;
        println!("{}", result.as_text());
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("this example runs commands on this machine too, which needs Linux");
}
