// Routes a request to its answer.
#include "server/http/http_server.h"

#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "server/http/allowed_hosts.h"
#include "server/http/connections.h"
#include "server/http/page/assets.h"
#include "server/http/request.h"
#include "server/process/socket.h"

namespace eplb {

namespace {

constexpr int kBacklog = 128;
// Headers of every answer: the page loads nothing from elsewhere, and no other page frames it.
constexpr char kHeaders[] =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src "
    "'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cache-Control: no-store\r\n";

HttpResponse Probe(const absl::Status& status) {
  return {.status = status.ok() ? 200 : 503,
          .body = status.ok() ? "ok\n" : absl::StrCat(status.message(), "\n"),
          .content_type = "text/plain"};
}

// Refuses a request whose Host header is missing, repeated or not allowed. Returns none if it is
// allowed.
std::optional<HttpResponse> RefuseHost(const AllowedHosts& hosts, const HttpRequest& request) {
  const std::vector<std::string_view> given = request.ValuesOf("Host");
  if (given.empty() && request.is_http_1_0) return std::nullopt;  // older than this header
  if (given.size() != 1) {
    return ErrorResponse(400,
                         absl::StrCat("Host is given ", given.size(), " times, expected once"));
  }
  if (hosts.Allows(given.front())) return std::nullopt;
  return ErrorResponse(
      421, absl::StrCat(
               "Host is \"", Shown(given.front()),
               "\", expected an IP address, localhost or a name that http.allowed_hosts lists"));
}

// Returns none unless the path is a file of the page. Names are compared as a whole, so none leads
// elsewhere.
std::optional<HttpResponse> PageFile(std::string_view path) {
  constexpr std::string_view kFolder = "/page/";
  std::string_view name;
  if (path == "/") {
    name = "index.html";
  } else if (path == "/api/v1/openapi.json") {
    name = "openapi.json";
  } else if (path.starts_with(kFolder)) {
    name = path.substr(kFolder.size());
  } else {
    return std::nullopt;
  }
  const PageAsset* const asset = FindPageAsset(name);
  if (asset == nullptr) return std::nullopt;
  return HttpResponse{.body = std::string(asset->bytes),
                      .content_type = std::string(asset->content_type)};
}

HttpResponse Route(const HttpServer::Sources& sources, const HttpFailures& failures,
                   const std::string& path, const QueryParameters& query) {
  std::optional<HttpResponse> file = PageFile(path);
  if (!file && path.starts_with("/api/")) return AnswerApi(sources.api, path, query);
  if (!query.empty()) {
    return ErrorResponse(400, absl::StrCat("unknown parameter \"", Shown(query.begin()->first),
                                           "\", expected none"));
  }
  if (path == "/livez" && sources.alive) return Probe(sources.alive());
  if (path == "/readyz" && sources.ready) return Probe(sources.ready());
  if (path == "/metrics" && sources.metrics) {
    return {.body = sources.metrics(failures),
            .content_type = "text/plain; version=0.0.4; charset=utf-8"};
  }
  if (path == "/version" && sources.version) return {.body = sources.version()};
  if (file) return *std::move(file);
  return ErrorResponse(404,
                       "no such path; there are /, /livez, /readyz, /metrics, /version, "
                       "/api/v1/jobs, /api/v1/openapi.json");
}

// Answers by status code, 400 and above. threads: safe.
class ErrorCounts {
 public:
  void Add(int status) {
    const std::lock_guard lock(mutex_);
    ++counts_[status];
  }
  std::map<int, int64_t> counts() const {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<int, int64_t> counts_;  // guarded by mutex_
};

std::string BytesOf(const HttpResponse& response, bool with_body) {
  const std::string allow = response.status == 405 ? "Allow: GET, HEAD\r\n" : "";
  return absl::StrCat(
      AnswerHead(response.status, response.content_type,
                 absl::StrCat(kHeaders, allow, "Content-Length: ", response.body.size(), "\r\n")),
      "\r\n", with_body ? response.body : "");
}

}  // namespace

struct HttpServer::Parts {
  Parts(Sources given, Descriptor listener, Address bound, std::vector<std::string> names,
        size_t max_connections)
      : sources(std::move(given)),
        address(std::move(bound)),
        hosts(std::move(names)),
        connections(
            std::move(listener), {.max_connections = max_connections},
            [this](std::string_view head, bool too_large) { return AnswerTo(head, too_large); }) {}

  // Probes and errors are answered at once. A question has one of the threads for answers.
  Connections::Answer AnswerTo(std::string_view head, bool too_large) {
    if (too_large) {
      return {.bytes = Counted(
                  ErrorResponse(431, absl::StrCat("the request's head is larger than ",
                                                  Connections::Limits().max_head_bytes, " bytes")),
                  /*with_body=*/true)};
    }
    std::optional<HttpRequest> request = ParseRequest(head);
    if (!request) {
      return {.bytes = Counted(ErrorResponse(400, "not a request of HTTP/1.0 or HTTP/1.1"), true)};
    }
    const bool with_body = request->method != "HEAD";
    std::optional<HttpResponse> refusal = RefuseHost(hosts, *request);
    if (!refusal && with_body && request->method != "GET") {
      refusal = ErrorResponse(405, "read-only: use GET or HEAD");
    }
    if (refusal) return {.bytes = Counted(*refusal, with_body)};
    const bool is_probe = request->path == "/livez" || request->path == "/readyz";
    auto answer = [this, with_body, path = std::move(request->path),
                   query = std::move(request->query)] {
      return Counted(Route(sources, Failures(), path, query), with_body);
    };
    if (is_probe) return {.bytes = answer()};
    return {.make = std::move(answer)};
  }

  std::string Counted(const HttpResponse& response, bool with_body) {
    if (response.status >= 400) errors.Add(response.status);
    return BytesOf(response, with_body);
  }

  HttpFailures Failures() const {
    return {.answers = errors.counts(), .drops = connections.drops()};
  }

  const Sources sources;
  const Address address;
  const AllowedHosts hosts;
  ErrorCounts errors;
  Connections connections;  // last, because its threads use all others
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const Address& listen, Sources sources, std::vector<std::string> allowed_hosts,
    size_t max_connections) {
  if (listen.is_unix()) {
    return InvalidInput("HTTP cannot listen on ", listen.Text(), ", expected ADDR:PORT");
  }
  EPLB_ASSIGN_OR_RETURN(TcpListeners bound, ListenTcp(listen, kBacklog, /*most=*/1));
  allowed_hosts.push_back(listen.host);
  return std::unique_ptr<HttpServer>(new HttpServer(std::make_unique<Parts>(
      std::move(sources), std::move(bound.sockets.front()), std::move(bound.address),
      std::move(allowed_hosts), max_connections)));
}

HttpServer::HttpServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

HttpServer::~HttpServer() = default;

const Address& HttpServer::address() const { return parts_->address; }

}  // namespace eplb
