// The read-only HTTP side of the daemon, on its own threads.
//   /              the page for people, and below /page/ its files; see page/assets.h
//   /livez         200 while the core's thread turns
//   /readyz        200 while the daemon can propose to any job: the store takes writes and nothing
//                  is drained; a job's own state does not count; else 503. Both: one line of text
//   /metrics       text format of Prometheus
//   /version       {"version", "grpc_version"}
//   /api/v1/...    see api.h; /api/v1/openapi.json describes all of it
// GET and HEAD only, one request a connection. Bounded: connections, threads, a request's size, the
// time of its head and of its answer, and the memory of answers that peers have not taken. The
// thread that serves all connections answers the probes itself, so that no question and no slow
// peer can hold them up. Errors are {"error": "one sentence"}: 421 for a Host that is not allowed
// (the probes too, an IP address always passes), 431 for a head above 8 KiB, 400 for what is no
// HTTP. Ranges are not looked at: an answer comes whole.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "server/http/api.h"
#include "server/http/failures.h"
#include "server/process/address.h"

namespace eplb {

class HttpServer {
 public:
  // All are called on the server's threads. What is not set is 404. alive and ready must not wait.
  struct Sources {
    std::function<absl::Status()> alive = {};
    std::function<absl::Status()> ready = {};
    std::function<std::string(const HttpFailures&)> metrics = {};
    std::function<std::string()> version = {};  // JSON
    ApiSources api = {};
  };
  // allowed_hosts: names besides localhost and that of `listen`. max_connections: see
  // Connections::Limits; in three stages, so three times as many in all.
  // errors: InvalidArgument for a Unix socket, Unavailable when the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const Address& listen, Sources sources, std::vector<std::string> allowed_hosts = {},
      size_t max_connections = 256);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // With the port in use.
  const Address& address() const;

 private:
  struct Parts;
  explicit HttpServer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace eplb
