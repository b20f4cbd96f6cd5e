#include "server/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "server/http/page/assets.h"
#include "tests/support/raw_connection.h"

namespace eplb {

namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

// "421=2 431=1 crowded=0 late=0"
std::string FailuresText(const HttpFailures& failures) {
  std::string text;
  for (const auto& [code, count] : failures.answers) absl::StrAppend(&text, code, "=", count, " ");
  return absl::StrCat(text, "crowded=", failures.drops.crowded, " late=", failures.drops.late);
}

class HttpServerTest : public ::testing::Test {
 protected:
  void Start() {
    server_ = *HttpServer::Start({.host = "127.0.0.1"},
                                 {.alive = [this] { return alive_; },
                                  .ready = [this] { return ready_; },
                                  .metrics = &FailuresText,
                                  .api = {.jobs = [] { return std::vector<v1::JobStatus>(); },
                                          .refusals = [] { return std::vector<v1::Refusal>(); },
                                          .warnings = [] { return std::vector<std::string>(); }}},
                                 {"eplb.example.org"});
  }
  // Status code and body.
  std::pair<int, std::string> Get(const std::string& path) {
    httplib::Client client("127.0.0.1", server_->address().port);
    const httplib::Result result = client.Get(path);
    if (!result) return {0, httplib::to_string(result.error())};
    return {result->status, result->body};
  }
  // All that comes back for these bytes.
  std::string Ask(const std::string& bytes) {
    RawConnection connection(server_->address().port);
    connection.Send(bytes);
    return connection.ReadAll();
  }

  absl::Status alive_;
  absl::Status ready_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, BothProbesAnswer200WhenAllIsWell) {
  Start();
  EXPECT_EQ(Get("/livez"), std::pair(200, std::string("ok\n")));
  EXPECT_EQ(Get("/readyz"), std::pair(200, std::string("ok\n")));
}

TEST_F(HttpServerTest, ReadyzIs503WithTheReasonWhileLivezStays200) {
  ready_ = absl::UnavailableError("the store does not take writes");
  Start();
  EXPECT_EQ(Get("/readyz"), std::pair(503, std::string("the store does not take writes\n")));
  EXPECT_EQ(Get("/livez").first, 200);
  alive_ = absl::UnavailableError("stopped");
  EXPECT_EQ(Get("/livez"), std::pair(503, std::string("stopped\n")));
}

TEST_F(HttpServerTest, AnAnswerComesWholeWhateverRangesAreAskedFor) {
  Start();
  httplib::Client client("127.0.0.1", server_->address().port);
  std::string ranges = "bytes=0-";
  for (int i = 0; i < 500; ++i) ranges += ",0-";
  const httplib::Result result = client.Get("/livez", {{"Range", ranges}});
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 200);
  EXPECT_EQ(result->body, "ok\n");
  EXPECT_FALSE(result->has_header("Content-Range"));
}

TEST_F(HttpServerTest, ARangeThatCannotBeReadIsNotLookedAtEither) {
  Start();
  for (const char* range : {"Range: bytes=x", "rANGE:bytes=9-2", "X: a\nRange: bytes=x"}) {
    const std::string answer =
        Ask(absl::StrCat("GET /livez HTTP/1.1\r\nHost: localhost\r\n", range, "\r\n\r\n"));
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 ")) << range;
    EXPECT_THAT(answer, HasSubstr("\r\n\r\nok\n")) << range;
  }
}

TEST_F(HttpServerTest, OtherPathsAre404AndUnknownParametersAre400) {
  Start();
  EXPECT_EQ(Get("/nothing").first, 404);
  EXPECT_EQ(Get("/version").first, 404) << "no source is connected";
  EXPECT_THAT(Get("/readyz?verbose=1").second, HasSubstr("unknown parameter \\\"verbose\\\""));
  EXPECT_EQ(Get("/readyz?verbose=1").first, 400);
}

TEST_F(HttpServerTest, NothingCanBeWritten) {
  Start();
  httplib::Client client("127.0.0.1", server_->address().port);
  EXPECT_EQ(client.Post("/livez", "x", "text/plain")->status, 405);
  EXPECT_EQ(client.Put("/livez", std::string(100000, 'x'), "text/plain")->status, 405);
  EXPECT_EQ(client.Delete("/readyz")->status, 405);
  EXPECT_EQ(client.Options("/readyz")->status, 405);
  const httplib::Result head = client.Head("/livez");
  EXPECT_EQ(head->status, 200);
  EXPECT_EQ(head->body, "");
}

TEST_F(HttpServerTest, EveryAnswerCarriesTheStrictHeaders) {
  Start();
  httplib::Client client("127.0.0.1", server_->address().port);
  for (const char* path : {"/livez", "/nothing", "/", "/page/main.js", "/api/v1/jobs"}) {
    const httplib::Result result = client.Get(path);
    EXPECT_EQ(result->get_header_value("Content-Security-Policy"), kPolicy) << path;
    EXPECT_EQ(result->get_header_value("X-Content-Type-Options"), "nosniff");
    EXPECT_EQ(result->get_header_value("Referrer-Policy"), "no-referrer");
    EXPECT_EQ(result->get_header_value("Cache-Control"), "no-store");
  }
}

TEST_F(HttpServerTest, EveryFileOfThePageIsServedWithItsType) {
  Start();
  httplib::Client client("127.0.0.1", server_->address().port);
  std::set<std::string> names;
  for (const PageAsset& asset : PageAssets()) {
    const std::string name(asset.name);
    names.insert(name);
    const httplib::Result result = client.Get("/page/" + name);
    ASSERT_TRUE(result) << name;
    EXPECT_EQ(result->status, 200) << name;
    EXPECT_EQ(result->body, asset.bytes) << name;
    EXPECT_EQ(result->get_header_value("Content-Type"), asset.content_type) << name;
  }
  for (const char* name : {"index.html", "main.js", "style.css", "uPlot.js", "openapi.json"}) {
    EXPECT_EQ(names.count(name), 1U) << name;
  }
  EXPECT_EQ(client.Get("/page/style.css")->get_header_value("Content-Type"),
            "text/css; charset=utf-8");
  EXPECT_EQ(client.Get("/")->body, client.Get("/page/index.html")->body);
  EXPECT_THAT(client.Get("/")->get_header_value("Content-Type"), StartsWith("text/html"));
  EXPECT_EQ(client.Head("/page/main.js")->body, "");
}

// The policy allows no script or style inside of the page, and nothing from elsewhere.
TEST_F(HttpServerTest, ThePageNeedsNothingThatItsPolicyForbids) {
  Start();
  const std::string page = Get("/").second;
  size_t scripts = 0;
  for (size_t at = 0; (at = page.find("<script", at)) != std::string::npos; ++at, ++scripts) {
    const std::string tag = page.substr(at, page.find('>', at) - at);
    EXPECT_THAT(tag, HasSubstr(" src=\"page/"));
  }
  EXPECT_GT(scripts, 1U);
  // Every file that it names is there.
  for (size_t at = 0; (at = page.find("\"page/", at)) != std::string::npos; ++at) {
    const size_t name = at + sizeof("page/");
    const std::string file = page.substr(name, page.find('"', name) - name);
    EXPECT_NE(FindPageAsset(file), nullptr) << file;
  }
  for (const char* forbidden : {"<script>", "<style", " style=", " onclick=", " onload=", "http://",
                                "https://", "javascript:", "<base", "<form"}) {
    EXPECT_THAT(page, Not(HasSubstr(forbidden)));
  }
  EXPECT_THAT(std::string(kPolicy), Not(HasSubstr("unsafe")));
}

TEST_F(HttpServerTest, WhatIsNoFileOfThePageIs404WhateverItsPathLooksLike) {
  Start();
  for (const char* path : {"/page/",
                           "/page",
                           "/page/none.js",
                           "/page/../page/main.js",
                           "/page//main.js",
                           "/page/./main.js",
                           "/page/../../etc/passwd",
                           "/page/%2e%2e/%2e%2e/etc/passwd",
                           "/page/..%2f..%2fetc%2fpasswd",
                           "/page/main.js/",
                           "/page/main.js%00.css",
                           "/page/MAIN.js",
                           "/page/server/http/page/main.js",
                           "/page/page/main.js",
                           "//page/main.js",
                           "/main.js",
                           "/index.html",
                           "/page\\main.js",
                           "/api/v1/openapi.json/",
                           "/api/v1/../openapi.json"}) {
    const std::string answer =
        Ask(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 404 ")) << path;
    EXPECT_THAT(answer, HasSubstr("{\"error\":\"")) << path;
    EXPECT_THAT(answer, Not(HasSubstr("root:"))) << path;
  }
  EXPECT_EQ(Get("/?x=1").first, 400);
  EXPECT_EQ(Get("/page/main.js?v=2").first, 400);
}

TEST_F(HttpServerTest, TheApisDescriptionIsServed) {
  Start();
  EXPECT_EQ(Get("/api/v1/openapi.json").first, 200);
  EXPECT_THAT(Get("/api/v1/openapi.json").second, StartsWith("{"));
  EXPECT_EQ(Get("/api/v1/openapi.json?x=1").first, 400);
}

TEST_F(HttpServerTest, ARequestInPiecesIsAnswered) {
  Start();
  RawConnection connection(server_->address().port);
  for (const char* piece : {"GET /li", "vez HTTP/1.1\r\nHost: localhost\r", "\n\r", "\n"}) {
    connection.Send(piece);
  }
  EXPECT_THAT(connection.ReadAll(), StartsWith("HTTP/1.1 200 OK"));
}

TEST_F(HttpServerTest, SilentAndSlowConnectionsHoldNobodyUp) {
  Start();
  std::vector<RawConnection> slow;
  for (int i = 0; i < 200; ++i) {
    slow.emplace_back(server_->address().port);
    if (i % 2 == 0) slow.back().Send("GET /livez HTTP/1.1\r\nX-");
    if (i % 20 == 0) {
      EXPECT_EQ(Get("/livez").first, 200);
    }
  }
  for (RawConnection& one : slow) one.Send("a");
  EXPECT_EQ(Get("/readyz").first, 200);
}

TEST_F(HttpServerTest, ProbesAnswerWhileEveryThreadThatMakesAnswersIsHeldUp) {
  std::mutex held_up;
  held_up.lock();
  server_ = *HttpServer::Start({.host = "127.0.0.1"}, {.alive = [this] { return alive_; },
                                                       .ready = [this] { return ready_; },
                                                       .version =
                                                           [&held_up] {
                                                             const std::lock_guard lock(held_up);
                                                             return std::string("{}");
                                                           }});
  std::vector<RawConnection> questions;
  for (int i = 0; i < 40; ++i) {
    questions.emplace_back(server_->address().port);
    questions.back().Send("GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }
  EXPECT_EQ(Get("/livez").first, 200);
  EXPECT_EQ(Get("/readyz").first, 200);
  held_up.unlock();
  for (RawConnection& one : questions) EXPECT_THAT(one.ReadAll(), StartsWith("HTTP/1.1 200 "));
}

TEST_F(HttpServerTest, PeersThatDoNotReadTheirLargeAnswersHoldNobodyUp) {
  server_ =
      *HttpServer::Start({.host = "127.0.0.1"},
                         {.alive = [this] { return alive_; },
                          .metrics = [](const HttpFailures&) { return std::string(8 << 20, '#'); },
                          .version = [] { return std::string("{}"); }});
  std::vector<RawConnection> silent;
  for (int i = 0; i < 40; ++i) {
    silent.emplace_back(server_->address().port);
    silent.back().Send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }
  EXPECT_EQ(Get("/livez").first, 200);
  // Behind the 40 questions, of which none may take a thread for longer than its making.
  EXPECT_EQ(Get("/version").first, 200);
  for (RawConnection& one : silent) EXPECT_TRUE(one.ReadToTheEnd());
}

TEST_F(HttpServerTest, ANameThatNobodyListedIs421AndCounted) {
  Start();
  for (const char* path : {"/livez", "/readyz", "/metrics", "/api/v1/jobs"}) {
    const std::string answer =
        Ask(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: evil.example:29611\r\n\r\n"));
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 421 Misdirected Request\r\n")) << path;
    EXPECT_THAT(answer, HasSubstr("{\"error\":\"Host is \\\"evil.example:29611\\\", expected an IP "
                                  "address, localhost or a name that http.allowed_hosts lists\"}"));
  }
  EXPECT_EQ(Get("/metrics").second, "421=4 crowded=0 late=0");
}

TEST_F(HttpServerTest, AddressesAndListedNamesAreAnswered) {
  Start();
  for (const char* host : {"127.0.0.1", "10.1.2.3:8080", "[::1]:29611", "localhost", "LOCALHOST:1",
                           "EPLB.example.org"}) {
    EXPECT_THAT(Ask(absl::StrCat("GET /livez HTTP/1.1\r\nHost: ", host, "\r\n\r\n")),
                StartsWith("HTTP/1.1 200 "))
        << host;
  }
}

TEST_F(HttpServerTest, AHostThatIsShownIsShortAndOnOneLine) {
  Start();
  const std::string answer =
      Ask("GET /livez HTTP/1.1\r\nHost: a\x01\xFF\"" + std::string(4000, 'b') + "\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 421 "));
  EXPECT_THAT(answer, HasSubstr("Host is \\\"a??"));
  EXPECT_LT(answer.size(), 700U);
}

TEST_F(HttpServerTest, HostIsGivenOnceButForTheOldestVersion) {
  Start();
  EXPECT_THAT(Ask("GET /livez HTTP/1.1\r\n\r\n"),
              HasSubstr("Host is given 0 times, expected once"));
  EXPECT_THAT(Ask("GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"),
              StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Ask("GET /livez HTTP/1.0\r\n\r\n"), HasSubstr(" 200 "));
}

TEST_F(HttpServerTest, AHeadThatIsTooLargeIs431AndCounted) {
  Start();
  const std::string begin = "GET /livez HTTP/1.1\r\nHost: localhost\r\n";
  std::string many;
  for (int i = 0; i < 9; ++i) many += "X: " + std::string(1000, 'a') + "\r\n";
  const std::string cases[] = {begin + many,           // without an end
                               begin + many + "\r\n",  // with one
                               begin + "X: " + std::string(9000, 'a') + "\r\n\r\n",  // one line
                               "GET /" + std::string(9000, 'a') + " HTTP/1.1\r\n\r\n"};
  for (const std::string& head : cases) {
    const std::string answer = Ask(head);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 431 Request Header Fields Too Large\r\n"));
    EXPECT_THAT(answer, HasSubstr("{\"error\":\"the request's head is larger than 8192 bytes\"}"));
    EXPECT_THAT(answer, HasSubstr(absl::StrCat("Content-Security-Policy: ", kPolicy)));
  }
  EXPECT_EQ(Get("/metrics").second, "431=4 crowded=0 late=0");
}

TEST_F(HttpServerTest, AHeadOfTheLargestSizeIsAnswered) {
  Start();
  std::string head = "GET /livez HTTP/1.1\r\nHost: localhost\r\nX: ";
  head.append(8192 - head.size(), 'a');
  EXPECT_THAT(Ask(head + "\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Ask(head + "a\r\n\r\n"), StartsWith("HTTP/1.1 431 "));
}

TEST_F(HttpServerTest, TheOldestOfTooManyIsDroppedAndCounted) {
  Start();
  std::vector<RawConnection> silent;
  silent.reserve(257);
  for (int i = 0; i < 257; ++i) silent.emplace_back(server_->address().port);
  EXPECT_TRUE(silent.front().ReadToTheEnd());
  EXPECT_THAT(Get("/metrics").second, HasSubstr("late=0"));
  EXPECT_THAT(Get("/metrics").second, ::testing::Not(HasSubstr("crowded=0")));
}

TEST_F(HttpServerTest, WhatIsNoHttpIsRefused) {
  Start();
  for (const char* bytes : {"\r\n\r\n", "GET\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                            "GET /%zz%00 HTTP/9.9\r\n\r\n", "\x16\x03\x01\x02\r\n\r\n"}) {
    RawConnection connection(server_->address().port);
    connection.Send(bytes);
    EXPECT_THAT(connection.ReadAll(), ::testing::Not(HasSubstr(" 200 "))) << bytes;
  }
  EXPECT_EQ(Get("/livez").first, 200);
}

TEST_F(HttpServerTest, WhatIsNoHttpIsToldSoInJson) {
  Start();
  for (const char* bytes : {"GARBAGE\r\n\r\n", "GET /livez\r\n\r\n", "GET /livez HTTP/9.9\r\n\r\n",
                            "FOO /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"}) {
    const std::string answer = Ask(bytes);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 ")) << bytes;
    EXPECT_THAT(answer, HasSubstr("Content-Type: application/json")) << bytes;
    EXPECT_THAT(answer, HasSubstr("\r\n\r\n{\"error\":\"not a request of HTTP/1.0 or HTTP/1.1\"}"))
        << bytes;
  }
}

TEST_F(HttpServerTest, APortInUseIsAnErrorThatSaysSo) {
  Start();
  const absl::Status status = HttpServer::Start(server_->address(), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("cannot listen on " + server_->address().Text()));
}

TEST_F(HttpServerTest, AnAddressOfAnotherMachineAndASocketPathAreErrors) {
  EXPECT_FALSE(HttpServer::Start({.host = "192.0.2.1", .port = 80}, {}).ok());
  EXPECT_EQ(HttpServer::Start({.unix_path = "/tmp/x"}, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace

}  // namespace eplb
