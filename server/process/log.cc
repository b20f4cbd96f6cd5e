#include "server/process/log.h"

#include <spdlog/async.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "base/foreign_text.h"
#include "base/json_value.h"

#include <nlohmann/json.hpp>

namespace eplb {
namespace {

constexpr std::chrono::seconds kLongestFlush{1};

constexpr size_t kQueuedLines = 8192;
constexpr const char* kLevelNames[] = {"debug", "info", "warn", "error"};
constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                 spdlog::level::warn, spdlog::level::err};
constexpr const char* kLoggerName = "eplbd";

LogFormat line_format = LogFormat::kJson;  // set by StartLog, before there are other threads

std::atomic<bool> log_is_open = false;
// Held shared by each line, and alone to shut spdlog down, which throws if a line meets its end.
std::shared_mutex log_mutex;

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
  return EscapedJson(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

std::string LogText(int64_t micros, LogLevel level, std::string_view event,
                    std::initializer_list<LogField> fields) {
  std::string line = absl::StrCat(
      absl::FormatTime("%H:%M:%E3S", absl::FromUnixMicros(micros), absl::UTCTimeZone()), " ",
      absl::StrFormat("%-5s", kLevelNames[static_cast<size_t>(level)]), " ", std::string(event));
  std::string reason;
  for (const LogField& field : fields) {
    std::string text =
        Printable(std::visit([](const auto& value) { return absl::StrCat(value); }, field.value));
    if (field.key == "reason") {
      reason = absl::StrCat(": ", text);
      continue;
    }
    const bool plain = !text.empty() && text.find_first_of(" \"\\") == std::string::npos;
    absl::StrAppend(&line, " ", std::string(field.key), "=", plain ? text : wire::JsonQuote(text));
  }
  return line + reason;
}

LogFormat LogFormatOf(std::string_view name) {
  const bool text = name == "text" || (name == "auto" && isatty(STDERR_FILENO) == 1);
  return text ? LogFormat::kText : LogFormat::kJson;
}

void StartLog(std::string_view level, LogFormat format) {
  line_format = format;
  spdlog::init_thread_pool(kQueuedLines, 1);
  const std::shared_ptr<spdlog::logger> logger =
      spdlog::create_async_nb<spdlog::sinks::stderr_sink_mt>(kLoggerName);
  logger->set_pattern("%v");
  for (size_t i = 0; i < std::size(kLevels); ++i) {
    if (level == kLevelNames[i]) logger->set_level(kLevels[i]);
  }
  log_is_open = true;
}

void StopLog() {
  if (!log_is_open.exchange(false)) return;
  const auto written = std::make_shared<std::promise<void>>();
  std::thread([written] {
    const std::unique_lock lock(log_mutex);
    spdlog::shutdown();
    written->set_value();
  }).detach();
  (void)written->get_future().wait_for(kLongestFlush);
}

void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  if (!log_is_open) return;  // a lock that lines keep asking for would keep StopLog waiting
  const std::shared_lock lock(log_mutex);
  if (!log_is_open) return;
  const std::shared_ptr<spdlog::logger> logger = spdlog::get(kLoggerName);
  const spdlog::level::level_enum spdlog_level = kLevels[static_cast<size_t>(level)];
  if (!logger->should_log(spdlog_level)) return;
  const int64_t micros = absl::ToUnixMicros(absl::Now());
  const std::string line = line_format == LogFormat::kJson ? LogLine(micros, level, event, fields)
                                                           : LogText(micros, level, event, fields);
  logger->log(spdlog::source_loc{}, spdlog_level, spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace eplb
