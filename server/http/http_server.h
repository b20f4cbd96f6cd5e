// The read-only HTTP side of the daemon, on its own threads.
//   /livez   200 while the core's thread turns
//   /readyz  200 when proposals can be made; else 503
// A 503 carries the reason as one line of text.
#ifndef EPLB_SERVER_HTTP_HTTP_SERVER_H_
#define EPLB_SERVER_HTTP_HTTP_SERVER_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "server/address.h"

namespace eplb {

class HttpServer {
 public:
  // Both are called on the server's threads.
  struct Probes {
    std::function<absl::Status()> alive = {};
    std::function<absl::Status()> ready = {};
  };
  // errors: InvalidArgument for a Unix socket, Unavailable when the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const Address& listen, Probes probes);
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

#endif  // EPLB_SERVER_HTTP_HTTP_SERVER_H_
