// Preloaded into a program that would listen on every network interface, so that it listens only on the loopback
// address.
const net = require("node:net");

const listen = net.Server.prototype.listen;

net.Server.prototype.listen = function (first, ...rest) {
  if (typeof first === "object" && first !== null && first.port !== undefined) {
    return listen.call(this, { ...first, host: "127.0.0.1" }, ...rest);
  }
  if (typeof first === "number") {
    const callbacks = rest.filter((each) => typeof each === "function");
    return listen.call(this, { port: first, host: "127.0.0.1" }, ...callbacks);
  }
  return listen.call(this, first, ...rest);
};
