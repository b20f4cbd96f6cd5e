// Answers of the HTTP side of a running daemon: one snapshot of its parts per request.
#pragma once

#include <string>

#include "server/http/http_server.h"
#include "server/http/metrics.h"

namespace eplb {

class RpcServer;
class Runner;

struct Observed {
  const Runner* runner = nullptr;  // both outlive the HTTP server
  const RpcServer* rpc = nullptr;
  std::string tls_cert;     // a path; empty without TLS
  bool per_expert = false;  // metrics.per_expert
  std::string version;
};

MetricsSnapshot TakeSnapshot(const Observed& observed);
HttpServer::Sources SourcesOf(const Observed& observed);

}  // namespace eplb
