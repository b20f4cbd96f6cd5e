#include "server/http/http_server.h"

#include <httplib.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace eplb {
namespace {

constexpr size_t kThreads = 4;
constexpr time_t kSocketSeconds = 5;  // a peer that neither sends nor reads is dropped
constexpr time_t kIdleSeconds = 2;    // an idle connection holds one of the threads
constexpr absl::Duration kStartDeadline = absl::Seconds(5);
constexpr size_t kMaxRequestBytes = 8192;

void Answer(const absl::Status& status, httplib::Response* response) {
  response->status = status.ok() ? 200 : 503;
  response->set_content(status.ok() ? "ok\n" : absl::StrCat(status.message(), "\n"), "text/plain");
}

}  // namespace

struct HttpServer::Parts {
  Address address;
  Probes probes;
  httplib::Server server;
  std::thread thread;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const Address& listen,
                                                              Probes probes) {
  if (listen.is_unix()) {
    return absl::InvalidArgumentError(
        absl::StrCat("HTTP cannot listen on ", listen.Text(), ", expected ADDR:PORT"));
  }
  auto parts = std::make_unique<Parts>();
  parts->probes = std::move(probes);
  httplib::Server& server = parts->server;
  server.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  server.set_read_timeout(kSocketSeconds);
  server.set_write_timeout(kSocketSeconds);
  server.set_keep_alive_timeout(kIdleSeconds);
  server.set_payload_max_length(kMaxRequestBytes);
  // The library's default shares the port with any other process that asks for it.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    (void)setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  const Probes* raw = &parts->probes;
  server.Get("/livez", [raw](const httplib::Request&, httplib::Response& response) {
    Answer(raw->alive(), &response);
  });
  server.Get("/readyz", [raw](const httplib::Request&, httplib::Response& response) {
    Answer(raw->ready(), &response);
  });
  errno = 0;
  int port = listen.port;
  if (port == 0) {
    port = server.bind_to_any_port(listen.host);
  } else if (!server.bind_to_port(listen.host, port)) {
    port = -1;
  }
  if (port <= 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", listen.Text(), ": ",
                     errno != 0 ? std::strerror(errno) : "not an address of this machine"));
  }
  parts->address = listen.WithPort(port);
  parts->thread = std::thread([&server] { (void)server.listen_after_bind(); });
  // stop() of a server that does not run yet is lost.
  const absl::Time deadline = absl::Now() + kStartDeadline;
  while (!server.is_running() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(parts)));
}

HttpServer::HttpServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

HttpServer::~HttpServer() {
  parts_->server.stop();
  parts_->thread.join();
}

const Address& HttpServer::address() const { return parts_->address; }

}  // namespace eplb
