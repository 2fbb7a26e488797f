#!/usr/bin/env node
// Runs a command on an agent as if it ran here: execute.js TARGET TEXT [SECONDS]
//
// TARGET is unix:///PATH, or HOST:PORT with the files in TELEXEC_CERT, TELEXEC_KEY and TELEXEC_CA. Ctrl-C, or SECONDS later,
// ends the command and all that it started. A lost connection is made up for within GRACE_S seconds: no output is lost,
// and nothing runs twice.

import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { ChannelCredentials, credentials, status, type ClientOptions, type ClientReadableStream, type ServiceError } from "@grpc/grpc-js";
import {
  DisconnectPolicy,
  type ExecutionEvent,
  ExecutionServiceClient,
  ExecuteRequest,
  AttachRequest,
  ExitCause,
  type Exited,
} from "./gen/telexec/v1/execution.js";

const GRACE_S = 30;
const PAUSE_MS = 200;

function connect(target: string): ExecutionServiceClient {
  const options: ClientOptions = {
    // a connection that is dead without saying so is noticed
    "grpc.keepalive_time_ms": 10_000,
    "grpc.keepalive_timeout_ms": 5_000,
    // a lost agent is looked for more often than once a minute
    "grpc.initial_reconnect_backoff_ms": PAUSE_MS,
    "grpc.max_reconnect_backoff_ms": 1_000,
  };
  const name = process.env["TELEXEC_SERVER_NAME"];
  if (name !== undefined) options["grpc.ssl_target_name_override"] = name;
  return new ExecutionServiceClient(target, target.startsWith("unix:") ? credentials.createInsecure() : tls(), options);
}

function tls(): ChannelCredentials {
  const read = (name: string) => readFileSync(process.env[name] ?? fail(`${name} is not set`));
  return credentials.createSsl(read("TELEXEC_CA"), read("TELEXEC_KEY"), read("TELEXEC_CERT"));
}

/** One command, whatever happens to the connection. */
class Execution {
  /** By which it is found again. */
  readonly #id = randomUUID();
  #position = 0;
  #started = false;
  #call: ClientReadableStream<ExecutionEvent> | undefined;
  #cancelled = false;

  constructor(
    readonly client: ExecutionServiceClient,
    readonly command: string,
    readonly deadline: Date | undefined,
  ) {}

  /** Ends it, with all that it has started. */
  cancel(): void {
    this.#cancelled = true;
    this.#call?.cancel();
  }

  /** Its events, each of them once. */
  async *events(): AsyncGenerator<ExecutionEvent> {
    let lostAt = 0;
    for (;;) {
      try {
        this.#call = this.#start();
        for await (const event of this.#call as AsyncIterable<ExecutionEvent>) {
          lostAt = 0;
          if (this.#note(event)) yield event;
          if (event.event?.$case === "exited") return;
        }
      } catch (error) {
        lostAt ||= Date.now();
        const isLost = (error as ServiceError).code === status.UNAVAILABLE;
        if (!isLost || !this.#started || this.#cancelled || Date.now() - lostAt > GRACE_S * 1000) throw error;
        await sleep(PAUSE_MS);
      }
    }
  }

  #start(): ClientReadableStream<ExecutionEvent> {
    // how long the command waits to be found again
    const policy = { onDisconnect: DisconnectPolicy.DISCONNECT_POLICY_KILL, disconnectGrace: { seconds: GRACE_S, nanos: 0 } };
    const options = this.deadline === undefined ? {} : { deadline: this.deadline };
    return this.#started
      ? this.client.attach(AttachRequest.fromPartial({ executionId: this.#id, position: this.#position, ...policy }), options)
      : this.client.execute(ExecuteRequest.fromPartial({ command: this.command, executionId: this.#id, ...policy }), options);
  }

  /** Whether it is news. */
  #note({ event, position }: ExecutionEvent): boolean {
    const wasStarted = this.#started;
    if (event?.$case === "started") this.#started = true;
    if (event?.$case === "stdout" || event?.$case === "stderr") this.#position = position + event.value.length;
    return event?.$case !== "started" || !wasStarted;
  }
}

/** Writes the output where it belongs, and returns the exit code. */
async function follow(events: AsyncIterable<ExecutionEvent>): Promise<number> {
  for await (const { event } of events) {
    switch (event?.$case) {
      case "stdout":
        await write(process.stdout, event.value);
        break;
      case "stderr":
        await write(process.stderr, event.value);
        break;
      case "gap":
        throw new Error("the agent no longer has a part of the output");
      case "exited":
        return exitCode(event.value);
    }
  }
  return 255;
}

/** Waits until there is room: a slow reader slows the command down, rather than fill the memory. */
function write(stream: NodeJS.WriteStream, data: Uint8Array): Promise<void> {
  return new Promise((resolve, reject) => stream.write(data, (error) => (error ? reject(error) : resolve())));
}

/** As shells have it, and timeout(1). */
function exitCode(exited: Exited): number {
  switch (exited.cause) {
    case ExitCause.EXIT_CAUSE_EXITED:
      return exited.exitCode;
    case ExitCause.EXIT_CAUSE_TIMED_OUT:
    case ExitCause.EXIT_CAUSE_DEADLINE_EXCEEDED:
      return 124;
    case ExitCause.EXIT_CAUSE_SIGNALED:
    case ExitCause.EXIT_CAUSE_OUT_OF_MEMORY:
      return exited.signal ? 128 + exited.signal : 255;
    default:
      return 255;
  }
}

function fail(text: string): never {
  console.error(`execute.js: ${text}`);
  process.exit(255);
}

async function main(): Promise<number> {
  const [target, text, seconds, ...rest] = process.argv.slice(2);
  if (target === undefined || text === undefined || rest.length > 0) fail("usage: execute.js TARGET TEXT [SECONDS]");
  const deadline = seconds === undefined ? undefined : new Date(Date.now() + Number(seconds) * 1000);
  const execution = new Execution(connect(target), text, deadline);
  let interrupted = false;
  process.once("SIGINT", () => {
    interrupted = true;
    execution.cancel();
  });
  try {
    return await follow(execution.events());
  } catch (error) {
    if (interrupted) return 130;
    const { code, details, message } = error as ServiceError;
    console.error(`execute.js: ${status[code] ?? "error"}: ${details ?? message}`);
    return code === status.DEADLINE_EXCEEDED ? 124 : code === status.UNAVAILABLE ? 255 : 125;
  } finally {
    // not process.exit(): the cancel is still to be sent
    execution.client.close();
  }
}

process.exitCode = await main();
