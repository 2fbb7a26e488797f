// Validates objects of cert-manager, a JSON text a line on standard input, against models that were generated from its CRDs.
// It runs from a copy beside these models, which is where Node looks for them.
import { createInterface } from "node:readline";
import * as models from "@kubernetes-models/cert-manager/cert-manager.io/v1";

for await (const line of createInterface({ input: process.stdin })) {
  const object = JSON.parse(line);
  new models[object.kind](object).validate();
}
