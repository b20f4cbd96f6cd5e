// The daemon's log on stderr: one JSON object a line, keys ts, level, event, then the event's own;
// or the same as text for people.
#pragma once

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

// "04:53:02.123 warn  refused  kind=denied peer=\"a b\": no rule fits": the time in UTC, then the
// fields, and `reason` last. A text with spaces is quoted; there is no newline in the line.
std::string LogText(int64_t micros, LogLevel level, std::string_view event,
                    std::initializer_list<LogField> fields);

enum class LogFormat { kJson, kText };
// name: auto, json or text; auto: text when stderr is a terminal.
LogFormat LogFormatOf(std::string_view name);

// Lines below the level are not written. level: debug, info, warn or error. Call once, at start.
void StartLog(std::string_view level, LogFormat format);
// Writes what is queued, for at most a second: a reader of stderr that has stopped reading holds up
// no end of the process.
void StopLog();

// Never blocks: while stderr does not take lines, the oldest of the newest 8192 are dropped.
// Does nothing before StartLog and after StopLog. threads: safe.
void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields = {});

}  // namespace eplb
