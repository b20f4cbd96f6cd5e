#include "server/rpc/grpc_log.h"

#include <atomic>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include "base/monotonic_clock.h"
#include "server/process/log.h"
#include "server/rpc/gate.h"
#include "server/runner/rate_limit.h"

namespace eplb {
namespace {

constexpr int32_t kLogsPerSecond = 10;
// Begin of the line that gRPC 1.51 writes, at its level debug, for every connection that ends in
// its handshake.
constexpr std::string_view kFailed = "Handshaking failed: ";

std::atomic<bool> errors_are_warnings = false;
std::atomic<int64_t> failed_handshakes = 0;

// The sentence without gRPC's list of where it happened.
std::string Sentence(std::string_view message) {
  return std::string(message.substr(0, message.find(" {")));
}

void OnFailedHandshake(std::string_view why) {
  static std::mutex mutex;  // guards both
  static RateLimit rate(kLogsPerSecond, MonotonicNow());
  static int64_t unlogged = 0;
  ++failed_handshakes;
  int64_t before = 0;
  {
    const std::lock_guard lock(mutex);
    if (!rate.Take(MonotonicNow())) {
      ++unlogged;
      return;
    }
    before = std::exchange(unlogged, 0);
  }
  Log(LogLevel::kWarn, "refused",
      {{"kind", std::string(NameOf(Refusal::kHandshake))},
       {"unlogged_before", before},
       {"reason", Sentence(why)}});
}

void OnLine(gpr_log_func_args* args) {
  const std::string_view message(args->message);
  if (message.starts_with(kFailed)) return OnFailedHandshake(message.substr(kFailed.size()));
  // A failed handshake is an error of several lines, of which one is enough.
  const bool about_handshakes = message.find("andshake") != std::string_view::npos;
  const bool error = args->severity == GPR_LOG_SEVERITY_ERROR && !about_handshakes;
  Log(error && errors_are_warnings ? LogLevel::kWarn : LogLevel::kDebug, "grpc",
      {{"reason", Sentence(message)}});
}

}  // namespace

void RouteGrpcLog() {
  google::protobuf::SetLogHandler([](google::protobuf::LogLevel /*level*/, const char* /*file*/,
                                     int /*line*/, const std::string& message) {
    Log(LogLevel::kDebug, "protobuf", {{"reason", message}});
  });
  gpr_set_log_function(&OnLine);
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_DEBUG);
}

void GrpcErrorsAreWarnings() { errors_are_warnings = true; }

int64_t FailedHandshakes() { return failed_handshakes; }

}  // namespace eplb
