// Loaded in front of a program that would listen on every interface of the machine: it listens on this one.
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
