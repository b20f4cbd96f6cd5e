#include "server/log.h"

#include <spdlog/async.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "absl/time/clock.h"
#include "absl/time/time.h"

#include <nlohmann/json.hpp>

namespace eplb {
namespace {

constexpr size_t kQueuedLines = 8192;
constexpr const char* kLevelNames[] = {"debug", "info", "warn", "error"};
constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                 spdlog::level::warn, spdlog::level::err};
constexpr const char* kLoggerName = "eplbd";

}  // namespace

std::string LogLine(int64_t micros, LogLevel level, std::string_view event,
                    std::initializer_list<LogField> fields) {
  nlohmann::ordered_json line;
  line["ts"] =
      absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::FromUnixMicros(micros), absl::UTCTimeZone());
  line["level"] = kLevelNames[static_cast<size_t>(level)];
  line["event"] = event;
  for (const LogField& field : fields) {
    std::visit([&](const auto& value) { line[std::string(field.key)] = value; }, field.value);
  }
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void StartLog(std::string_view name) {
  spdlog::init_thread_pool(kQueuedLines, 1);
  const std::shared_ptr<spdlog::logger> logger =
      spdlog::create_async_nb<spdlog::sinks::stderr_sink_mt>(kLoggerName);
  logger->set_pattern("%v");
  for (size_t i = 0; i < std::size(kLevels); ++i) {
    if (name == kLevelNames[i]) logger->set_level(kLevels[i]);
  }
}

void StopLog() { spdlog::shutdown(); }

void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  const std::shared_ptr<spdlog::logger> logger = spdlog::get(kLoggerName);
  const spdlog::level::level_enum spdlog_level = kLevels[static_cast<size_t>(level)];
  if (logger == nullptr || !logger->should_log(spdlog_level)) return;
  const std::string line = LogLine(absl::ToUnixMicros(absl::Now()), level, event, fields);
  logger->log(spdlog::source_loc{}, spdlog_level, spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace eplb
