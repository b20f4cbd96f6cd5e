// The daemon's log: one JSON object a line on stderr, keys ts, level, event, then the event's own.
#ifndef EPLB_SERVER_LOG_H_
#define EPLB_SERVER_LOG_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>

namespace eplb {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

struct LogField {
  std::string_view key;
  std::variant<int64_t, double, std::string> value;
};

// The line without its newline; text that is not UTF-8 is replaced, never dropped.
// micros: since 1970, UTC.
std::string LogLine(int64_t micros, LogLevel level, std::string_view event,
                    std::initializer_list<LogField> fields);

// Lines below the level are not written. name: debug, info, warn or error. Call once, at start.
void StartLog(std::string_view name);
// Writes what is queued.
void StopLog();

// Never blocks: while stderr does not take lines, the oldest of the newest 8192 are dropped.
// Does nothing before StartLog. threads: safe.
void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields = {});

}  // namespace eplb

#endif  // EPLB_SERVER_LOG_H_
