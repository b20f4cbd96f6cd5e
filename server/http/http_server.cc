#include "server/http/http_server.h"

#include <httplib.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "placement/status_macros.h"
#include "server/http/deadline_stream.h"
#include "server/http/intake.h"
#include "server/runner/monotonic_clock.h"

namespace eplb {
namespace {

constexpr int kThreads = 4;
constexpr absl::Duration kAnswerDeadline =
    absl::Seconds(10);               // a peer that does not read is dropped
constexpr size_t kMaxBodyBytes = 0;  // nothing that is asked has a body

HttpResponse Probe(const absl::Status& status) {
  return {.status = status.ok() ? 200 : 503,
          .body = status.ok() ? "ok\n" : absl::StrCat(status.message(), "\n"),
          .content_type = "text/plain"};
}

HttpResponse Route(const HttpServer::Sources& sources, const std::string& path,
                   const QueryParameters& query) {
  if (path.starts_with("/api/")) return AnswerApi(sources.api, path, query);
  if (!query.empty()) {
    return ErrorResponse(400,
                         absl::StrCat("unknown parameter \"", query.begin()->first.substr(0, 64),
                                      "\", expected none"));
  }
  if (path == "/livez" && sources.alive) return Probe(sources.alive());
  if (path == "/readyz" && sources.ready) return Probe(sources.ready());
  if (path == "/metrics" && sources.metrics) {
    return {.body = sources.metrics(), .content_type = "text/plain; version=0.0.4; charset=utf-8"};
  }
  if (path == "/version" && sources.version) return {.body = sources.version()};
  return ErrorResponse(404, "no such path; there are /livez, /readyz, /metrics, /version, /api/v1");
}

// The library's parser and writer without its sockets and threads.
class Exchange : public httplib::Server {
 public:
  explicit Exchange(const HttpServer::Sources& sources) {
    set_payload_max_length(kMaxBodyBytes);
    set_default_headers({{"Content-Security-Policy", "default-src 'self'"},
                         {"X-Content-Type-Options", "nosniff"},
                         {"Referrer-Policy", "no-referrer"},
                         {"Cache-Control", "no-store"}});
    // Before the library's own routing, which would read a body and match regular expressions.
    set_pre_routing_handler([&sources](const httplib::Request& request,
                                       httplib::Response& response) {
      const bool reads = request.method == "GET" || request.method == "HEAD";
      const HttpResponse answer = reads ? Route(sources, request.path, request.params)
                                        : ErrorResponse(405, "this side only reads: GET and HEAD");
      if (!reads) response.set_header("Allow", "GET, HEAD");
      response.status = answer.status;
      response.set_content(answer.body, answer.content_type);
      return HandlerResponse::Handled;
    });
  }

  void Serve(HttpArrival arrival) {
    const int socket = arrival.descriptor.get();
    DeadlineStream stream(socket, std::move(arrival.head), MonotonicNow() + kAnswerDeadline);
    bool closed = false;
    // An answer comes whole: thousands of overlapping ranges would make one of gigabytes.
    const auto whole = [](httplib::Request& request) { request.ranges.clear(); };
    (void)process_request(stream, /*close_connection=*/true, closed, whole);
    (void)shutdown(socket, SHUT_WR);
    // What the peer still sent would make the kernel throw our answer away.
    std::array<char, 4096> rest;
    constexpr int kMaxReads = 16;
    for (int i = 0; i < kMaxReads && recv(socket, rest.data(), rest.size(), MSG_DONTWAIT) > 0;) ++i;
  }
};

}  // namespace

struct HttpServer::Parts {
  Parts(Sources given, Descriptor listener, Address bound)
      : sources(std::move(given)),
        address(std::move(bound)),
        exchange(sources),
        intake(std::move(listener), {}) {}

  const Sources sources;
  const Address address;
  Exchange exchange;
  Intake intake;
  std::vector<std::thread> threads;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const Address& listen,
                                                              Sources sources) {
  if (listen.is_unix()) {
    return absl::InvalidArgumentError(
        absl::StrCat("HTTP cannot listen on ", listen.Text(), ", expected ADDR:PORT"));
  }
  EPLB_ASSIGN_OR_RETURN(auto listener, ListenHttp(listen));
  auto parts = std::make_unique<Parts>(std::move(sources), std::move(listener.first),
                                       std::move(listener.second));
  Parts* raw = parts.get();
  parts->threads.emplace_back([raw] { raw->intake.Run(); });
  for (int i = 0; i < kThreads; ++i) {
    parts->threads.emplace_back([raw] {
      while (std::optional<HttpArrival> arrival = raw->intake.Next()) {
        raw->exchange.Serve(*std::move(arrival));
      }
    });
  }
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(parts)));
}

HttpServer::HttpServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

HttpServer::~HttpServer() {
  parts_->intake.Stop();
  for (std::thread& thread : parts_->threads) thread.join();
}

const Address& HttpServer::address() const { return parts_->address; }

}  // namespace eplb
