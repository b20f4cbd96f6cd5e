#include "client/cli/flags.h"

#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/invalid_input.h"
#include "base/quantity.h"
#include "proto/wire/messages.h"

#include <CLI/CLI.hpp>

namespace eplb::cli {

absl::StatusOr<absl::Duration> ParseDuration(const std::string& flag, const std::string& text,
                                             absl::Duration most) {
  constexpr double kSecond = 1e9;
  const absl::Duration duration = absl::Nanoseconds(ParseNanoseconds(text, kSecond).value_or(0));
  if (duration > absl::ZeroDuration() && duration <= most) return duration;
  return InvalidInput(flag, " is \"", text, "\", expected e.g. 5s or 500ms, at most ",
                      absl::ToInt64Hours(most), "h");
}

namespace {

// A check of CLI11: empty for a name that a job or a request can have. The message leaves the name
// out: it may be long, and no text at all.
std::string NameProblem(const std::string& name, size_t max_length) {
  return std::string(wire::CheckPlainName("the name", name, max_length).message());
}

const char* MeaningOf(ExitCode code) {
  switch (code) {
    case kOk:
      return "ok";
    case kError:
      return "error";
    case kUsage:
      return "wrong flag or unusable input";
    case kUnreachable:
      return "unreachable";
    case kDenied:
      return "denied";
    case kNotFound:
      return "not found";
    case kConflict:
      return "conflict";
    case kTimeout:
      return "timeout";
    case kConditionNotMet:
      return "condition not met";
  }
  return "";
}

// "Exit codes: 0 ok, 1 error, ..", a number and its meaning on one line.
std::string ExitCodesText(const std::set<ExitCode>& codes) {
  constexpr size_t kWidth = 80;
  std::string text;
  std::string line = "Exit codes:";
  for (const ExitCode code : codes) {
    const std::string part = absl::StrCat(" ", static_cast<int>(code), " ", MeaningOf(code),
                                          code == *codes.rbegin() ? "." : ",");
    if (line.size() + part.size() > kWidth) {
      absl::StrAppend(&text, line, "\n");
      line = " ";
    }
    line += part;
  }
  return text + line;
}

bool IsDigits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// SimpleAtoi, of digits behind at most one sign.
template <class Number>
bool ReadInteger(const std::string& text, Number& number) {
  const bool is_signed = text.find_first_of("+-") == 0;
  return IsDigits(std::string_view(text).substr(is_signed ? 1 : 0)) &&
         absl::SimpleAtoi(text, &number);
}

// Number: how it is read. An empty value is reported for all flags alike, by main.cc.
template <class Number, class Value>
CLI::Option* AddIntegerOf(CLI::App& app, const char* name, Value& value, const std::string& help) {
  const CLI::callback_t read = [&value](const CLI::results_t& results) {
    Number number = 0;
    if (results.back().empty()) return true;
    if (!ReadInteger(results.back(), number)) return false;
    value = number;
    return true;
  };
  return app.add_option(name, read, help);
}

// A value that `parse` reads; `expected` is in the message about any other.
template <class Value, class Number>
CLI::Option* AddQuantity(CLI::App& app, const char* name, Value& value, const std::string& help,
                         std::optional<Number> (*parse)(std::string_view), const char* expected) {
  const CLI::callback_t read = [&value, parse](const CLI::results_t& results) {
    const std::optional<Number> number = parse(results.back());
    if (number) value = *number;
    return true;
  };
  return app.add_option(name, read, help)->check([parse, expected](const std::string& text) {
    if (text.empty() || parse(text)) return std::string();
    return absl::StrCat("\"", text, "\" is not ", expected);
  });
}

}  // namespace

CLI::Option* AddBytes(CLI::App& app, const char* name, int64_t& value, const std::string& help) {
  return AddQuantity(app, name, value, help, &ParseBytes, kBytesExpected);
}

CLI::Option* AddBytes(CLI::App& app, const char* name, std::optional<int64_t>& value,
                      const std::string& help) {
  return AddQuantity(app, name, value, help, &ParseBytes, kBytesExpected);
}

CLI::Option* AddFraction(CLI::App& app, const char* name, double& value, const std::string& help) {
  return AddQuantity(app, name, value, help, &ParseFraction, kFractionExpected);
}

CLI::Option* AddFraction(CLI::App& app, const char* name, std::optional<double>& value,
                         const std::string& help) {
  return AddQuantity(app, name, value, help, &ParseFraction, kFractionExpected);
}

CLI::Option* AddInteger(CLI::App& app, const char* name, int32_t& value, const std::string& help) {
  return AddIntegerOf<int32_t>(app, name, value, help);
}

CLI::Option* AddInteger(CLI::App& app, const char* name, int64_t& value, const std::string& help) {
  return AddIntegerOf<int64_t>(app, name, value, help);
}

CLI::Option* AddInteger(CLI::App& app, const char* name, std::optional<int32_t>& value,
                        const std::string& help) {
  return AddIntegerOf<int32_t>(app, name, value, help);
}

CLI::Option* AddInteger(CLI::App& app, const char* name, std::optional<int64_t>& value,
                        const std::string& help) {
  return AddIntegerOf<int64_t>(app, name, value, help);
}

std::string CheckNotNegative(const std::string& text) {
  int64_t number = 0;
  if (ReadInteger(text, number) && number >= 0) return "";
  const bool has_plus = text.rfind('+', 0) == 0;
  const bool is_large = IsDigits(std::string_view(text).substr(has_plus ? 1 : 0));
  return "\"" + text + (is_large ? "\" is too large" : "\" is no integer >= 0");
}

void AddFormat(CLI::App& app, Format& format, Formats formats) {
  std::vector<std::string> names = {"table", "json"};
  if (formats == Formats::kWithTrace) names.emplace_back("trace");
  app.add_option_function<std::string>(
         "-o,--output",
         [&format](const std::string& name) {
           format = name == "trace"  ? Format::kTrace
                    : name == "json" ? Format::kJson
                                     : Format::kTable;
         },
         "What to print [table]")
      ->check(CLI::IsMember(names).description(""))
      ->type_name(absl::StrJoin(names, "|"));
}

void AddChoice(CLI::App& app, const char* name, std::string& value, const std::string& help,
               const std::vector<std::string>& words) {
  app.add_option(name, value, help)
      ->check(CLI::IsMember(words).description(""))
      ->type_name(absl::StrJoin(words, "|"));
}

void AddLoadReading(CLI::App& app, LoadReading& reading) {
  AddChoice(app, "--format", reading.format,
            "Format of the load if its content is ambiguous; vllm is the statistics file of an "
            "open pull request",
            LoadFormatNames());
  AddLayerChoice(app, reading.layers, "Read the layers from this one on [0]",
                 "Read only these layers, such as 3-60 or 1,3,5 [all]");
  app.get_option("--first-layer")->check(&CheckNotNegative);
}

void NeedLoad(CLI::App& app) {
  for (const char* name : {"--format", "--first-layer", "--layers"}) {
    app.get_option(name)->needs(app.get_option("--load"));
  }
}

void AddLayerChoice(CLI::App& app, LayerChoice& choice, const std::string& first_help,
                    const std::string& list_help) {
  AddInteger(app, "--first-layer", choice.first, first_help)->type_name("L");
  const CLI::callback_t read = [&choice](const CLI::results_t& results) {
    if (auto list = ParseLayerNumbers(results.back()); list.ok()) choice.list = *std::move(list);
    return true;
  };
  app.add_option("--layers", read, list_help)
      ->check([](const std::string& text) {
        return text.empty() ? std::string()
                            : std::string(ParseLayerNumbers(text).status().message());
      })
      ->excludes(app.get_option("--first-layer"))
      ->type_name("LIST");
}

void AddShapeOptions(CLI::App& app, ShapeOptions& options) {
  AddInteger(app, "--gpus", options.gpus, "GPUs of the expert-parallel group")
      ->required()
      ->type_name("G");
  AddInteger(app, "--nodes", options.nodes, "NVLink domains they are on [1]")->type_name("N");
  AddInteger(app, "--groups", options.groups, "The router's expert groups [1]")->type_name("K");
  const std::vector<std::string_view> policies = PolicyNames();
  app.add_option("--policy", options.policy, "How to decide [" + options.policy + "]")
      ->type_name(absl::StrJoin(
          policies, "|", [](std::string* out, std::string_view name) { out->append(name); }));
  AddChoice(app, "--tie-break", options.tie_break, "Order of equal loads [stable]",
            {"stable", "compat"});
  app.add_option("--hierarchy", options.hierarchy,
                 "Keep expert groups on their node: by default when groups % nodes == 0")
      ->check(CLI::IsMember({"strict", "soft", "none"}).description(""))
      ->type_name("strict|soft|none");
  AddChoice(app, "--effort", options.effort, "Bound of a search [default]",
            {"fast", "default", "thorough"});
  app.add_flag("--allow-duplicates", options.allow_duplicates,
               "Let replicas of an expert share a GPU");
  AddInteger(app, "--max-moves-per-gpu", options.max_moves_per_gpu,
             "Most transfers into a GPU in a layer [incremental: 2 unless far off, else any]")
      ->type_name("M");
}

namespace {

std::optional<double> ParseTokenTime(std::string_view text) { return ParseNanoseconds(text, 1); }

}  // namespace

void AddCostOptions(CLI::App& app, CostOptions& options) {
  AddBytes(app, "--expert-bytes", options.expert_bytes,
           "Bytes that a transfer moves, e.g. 88MB [" + std::to_string(options.expert_bytes) + "]")
      ->type_name("B");
  app.add_option("--link-gbps", options.link_gbps,
                 "Of a GPU inside a node and between nodes, in GB/s or with a unit, 400Gb/s [" +
                     options.link_gbps + "]")
      ->type_name("INTRA,INTER");
  AddQuantity(app, "--token-ns", options.token_ns,
              "Time of a token on the fullest GPU [176ns, with --training 528ns]", &ParseTokenTime,
              "a time such as 176ns or 0.2us, or a number of nanoseconds")
      ->type_name("T");
  app.add_flag("--training", options.training,
               "A replica costs a broadcast of weights and a sum of gradients each step");
  AddBytes(app, "--weight-bytes", options.weight_bytes, "Of --training [--expert-bytes]")
      ->type_name("B");
  AddBytes(app, "--gradient-bytes", options.gradient_bytes, "Of --training [2 * weights: fp32]")
      ->type_name("B");
}

namespace {

// The same flag before the command counts where it is not given behind it.
void TakeFromRoot(const CLI::App& app, const char* flag, std::string& value) {
  const CLI::App* root = &app;
  while (root->get_parent() != nullptr) root = root->get_parent();
  const CLI::Option* const given = root->get_option_no_throw(flag);
  if (given != nullptr && !given->results().empty()) value = given->results().back();
}

}  // namespace

void AddQueryOptions(CLI::App& app, QueryOptions& options,
                     const std::set<ExitCode>& more_exit_codes, Formats formats) {
  app.add_option("--endpoint", options.endpoint,
                 "The daemon, or several, A,B: the one that leads answers "
                 "[EPLB_ENDPOINT, config file, unix socket, 127.0.0.1:29610]")
      ->type_name("HOST:PORT|unix:PATH");
  app.add_option("--context", options.context,
                 "A daemon of the config file by its name [EPLB_CONTEXT, context use]")
      ->type_name("NAME");
  app.parse_complete_callback([&app, &options] {
    // Behind the command one of the two is enough to say which daemon.
    if (!options.context.empty() || !options.endpoint.empty()) return;
    TakeFromRoot(app, "--context", options.context);
    TakeFromRoot(app, "--endpoint", options.endpoint);
  });
  app.add_option("--tls-ca", options.tls.ca, "Who signed its certificate, PEM [EPLB_TLS_CA]")
      ->type_name("FILE");
  app.add_option("--tls-cert", options.tls.cert, "Your certificate, PEM [EPLB_TLS_CERT]")
      ->type_name("FILE");
  app.add_option("--tls-key", options.tls.key, "Its key, PEM [EPLB_TLS_KEY]")->type_name("FILE");
  app.add_option("--tls-server-name", options.tls.server_name,
                 "Name in its certificate [EPLB_TLS_SERVER_NAME, the endpoint's host]")
      ->type_name("NAME");
  app.add_option("--timeout", options.timeout, "How long to wait [5s]")->type_name("DURATION");
  AddFormat(app, options.format, formats);
  std::set<ExitCode> codes = {kOk, kError, kUsage, kUnreachable, kDenied, kTimeout};
  codes.insert(more_exit_codes.begin(), more_exit_codes.end());
  app.footer(ExitCodesText(codes));
}

void AddJobOption(CLI::App& app, std::string& job, const std::string& help) {
  app.add_option("--job", job, help)
      ->check([](const std::string& name) { return NameProblem(name, wire::kMaxNameLength); })
      ->type_name("NAME");
}

void AddRequestIdOption(CLI::App& app, std::string& request_id) {
  app.add_option("--request-id", request_id,
                 "Names the request; a second one of that name is refused [drawn]")
      ->check([](const std::string& id) { return NameProblem(id, wire::kMaxRequestIdLength); })
      ->type_name("ID");
}

void AddLimitOption(CLI::App& app, int32_t& limit) {
  constexpr int32_t kMost = 1000;
  AddInteger(app, "--limit", limit, "At most so many [" + std::to_string(limit) + "]")
      ->check([](const std::string& text) {
        int32_t number = 0;
        const bool good = ReadInteger(text, number) && number >= 1 && number <= kMost;
        return good ? "" : absl::StrCat("\"", text, "\" is no integer 1..", kMost);
      })
      ->type_name("N");
}

}  // namespace eplb::cli
