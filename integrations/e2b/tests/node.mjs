// The SDK for JavaScript, as it comes: node.py runs this with the directory that it is installed in.

import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import path from 'node:path'

const require = createRequire(path.resolve(process.argv[2], 'package.json'))
const { Sandbox, CommandExitError, FileNotFoundError, TimeoutError } = require('e2b')

const sandbox = await Sandbox.create({ timeoutMs: 300_000, envs: { A: 'given' } })

async function commands() {
  const result = await sandbox.commands.run('echo out; echo err >&2; echo $A')
  assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['out\ngiven\n', 'err\n', 0])
  await assert.rejects(sandbox.commands.run('exit 3'), (error) => error instanceof CommandExitError && error.exitCode === 3)
  await assert.rejects(sandbox.commands.run('sleep 45', { timeoutMs: 1000 }), TimeoutError)
  const handle = await sandbox.commands.run('cat', { background: true, stdin: true })
  await sandbox.commands.sendStdin(handle.pid, 'one\n')
  await sandbox.commands.closeStdin(handle.pid)
  assert.equal((await handle.wait()).stdout, 'one\n')
  const sleeper = await sandbox.commands.run('sleep 45', { background: true })
  assert.equal(await sleeper.kill(), true)
  await assert.rejects(sleeper.wait(), CommandExitError)
  assert.deepEqual(await sandbox.commands.list(), [])
}

async function pty() {
  let heard = ''
  const onData = (data) => (heard += Buffer.from(data))
  const terminal = await sandbox.pty.create({ cols: 80, rows: 24, onData })
  await sandbox.pty.resize(terminal.pid, { cols: 91, rows: 31 })
  await sandbox.pty.sendInput(terminal.pid, Buffer.from('stty size; exit\n'))
  await terminal.wait()
  assert.match(heard, /31 91/)
}

async function files() {
  await sandbox.files.write('new/hello.txt', 'hellö')
  assert.equal(await sandbox.files.read('new/hello.txt'), 'hellö')
  const blob = new Uint8Array(3_000_000).map((_, n) => n % 251)
  await sandbox.files.write('blob', blob.buffer)
  assert.deepEqual(await sandbox.files.read('blob', { format: 'bytes' }), blob)
  assert.deepEqual((await sandbox.files.list('new')).map((one) => one.name), ['hello.txt'])
  await sandbox.files.rename('new/hello.txt', 'new/other')
  assert.equal(await sandbox.files.exists('new/hello.txt'), false)
  await sandbox.files.remove('new/other')
  await assert.rejects(sandbox.files.read('new/other'), FileNotFoundError)
  const events = []
  const watch = await sandbox.files.watchDir('new', (event) => events.push(event))
  await sandbox.files.write('new/watched', '')
  const isThere = () => events.some((event) => event.name === 'watched')
  for (let n = 0; n < 100 && !isThere(); n++) await new Promise((done) => setTimeout(done, 50))
  assert.ok(isThere(), JSON.stringify(events))
  await watch.stop()
}

async function lifecycle() {
  assert.equal((await sandbox.getInfo()).sandboxId, sandbox.sandboxId)
  await sandbox.setTimeout(100_000)
  const again = await Sandbox.connect(sandbox.sandboxId)
  assert.equal((await again.commands.run('echo $A')).stdout, 'given\n')
  const waiting = assert.rejects(again.commands.run('sleep 45'))
  await new Promise((done) => setTimeout(done, 300))
  await sandbox.kill()
  await waiting
  assert.equal(await sandbox.isRunning(), false)
}

for (const part of [commands, pty, files, lifecycle]) {
  await part()
  console.log(`${part.name} holds`)
}
