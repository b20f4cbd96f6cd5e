#include "client/cli/flags.h"

#include <optional>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/quantity.h"
#include "proto/wire/names.h"

namespace eplb::cli {
namespace {

// Empty for a name that a job or a request can have. The message leaves the name out, because it
// may be long or no text at all.
std::string NameProblem(const std::string& name, size_t max_length) {
  return std::string(wire::CheckPlainName("the name", name, max_length).message());
}

const char* MeaningOf(ExitCode code) {
  constexpr const char* kMeanings[] = {"ok",          "error",   "wrong flag or unusable input",
                                       "unreachable", "denied",  "not found",
                                       "conflict",    "timeout", "condition not met"};
  return kMeanings[code];
}

// "Exit codes: 0 ok, 1 error, ..": each number and its meaning on one line.
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

// Reads digits that follow at most one sign.
template <class Number>
bool ReadInteger(const std::string& text, Number& number) {
  const bool is_signed = text.find_first_of("+-") == 0;
  return IsDigits(std::string_view(text).substr(is_signed ? 1 : 0)) &&
         absl::SimpleAtoi(text, &number);
}

template <class Value>
struct NumberOf {
  using type = Value;
};
template <class Number>
struct NumberOf<std::optional<Number>> {
  using type = Number;
};

// How a number with a unit is read; `expected` is in the message about any other text.
template <class Number>
struct Quantity {
  std::optional<Number> (*parse)(std::string_view);
  const char* expected;
};

template <class Value, class Number>
Flags& AddQuantity(Flags& flags, const char* name, const char* type, Value& value,
                   const std::string& help, const Quantity<Number>& of) {
  const auto store = [&value, of](const std::string& text) {
    const std::optional<Number> number = of.parse(text);
    if (number) value = *number;
    return true;
  };
  return flags.Value(name, type, store, help).Check([of](const std::string& text) {
    if (text.empty() || of.parse(text)) return std::string();
    return absl::StrCat("\"", text, "\" is not ", of.expected);
  });
}

std::optional<double> ParseTokenTime(std::string_view text) { return ParseNanoseconds(text, 1); }

}  // namespace

absl::StatusOr<absl::Duration> ParseDuration(const std::string& flag, const std::string& text,
                                             absl::Duration most) {
  constexpr double kSecond = 1e9;
  const absl::Duration duration = absl::Nanoseconds(ParseNanoseconds(text, kSecond).value_or(0));
  if (duration > absl::ZeroDuration() && duration <= most) return duration;
  return InvalidInput(flag, " is \"", text, "\", expected e.g. 5s or 500ms, at most ",
                      absl::ToInt64Hours(most), "h");
}

std::string CheckNotNegative(const std::string& text) {
  int64_t number = 0;
  if (ReadInteger(text, number) && number >= 0) return "";
  const bool has_plus = text.rfind('+', 0) == 0;
  const bool is_large = IsDigits(std::string_view(text).substr(has_plus ? 1 : 0));
  return absl::StrCat("\"", text, is_large ? "\" is too large" : "\" is no integer >= 0");
}

template <class Value>
Flags& AddInteger(Flags& flags, const char* name, const char* type, Value& value,
                  const std::string& help) {
  const auto store = [&value](const std::string& text) {
    typename NumberOf<Value>::type number = 0;
    if (text.empty()) return true;  // an empty value is reported for all flags alike
    if (!ReadInteger(text, number)) return false;
    value = number;
    return true;
  };
  return flags.Value(name, type, store, help);
}

template Flags& AddInteger(Flags&, const char*, const char*, int32_t&, const std::string&);
template Flags& AddInteger(Flags&, const char*, const char*, int64_t&, const std::string&);
template Flags& AddInteger(Flags&, const char*, const char*, std::optional<int32_t>&,
                           const std::string&);
template Flags& AddInteger(Flags&, const char*, const char*, std::optional<int64_t>&,
                           const std::string&);

template <class Value>
Flags& AddBytes(Flags& flags, const char* name, Value& value, const std::string& help) {
  return AddQuantity(flags, name, "B", value, help, Quantity{&ParseBytes, kBytesExpected});
}

template Flags& AddBytes(Flags&, const char*, int64_t&, const std::string&);
template Flags& AddBytes(Flags&, const char*, std::optional<int64_t>&, const std::string&);

template <class Value>
Flags& AddFraction(Flags& flags, const char* name, Value& value, const std::string& help) {
  return AddQuantity(flags, name, "X", value, help, Quantity{&ParseFraction, kFractionExpected});
}

template Flags& AddFraction(Flags&, const char*, double&, const std::string&);
template Flags& AddFraction(Flags&, const char*, std::optional<double>&, const std::string&);

void AddFormat(Flags& flags, Format& format, Formats formats) {
  std::vector<std::string> names = {"table", "json"};
  if (formats == Formats::kWithTrace) names.emplace_back("trace");
  const auto store = [&format](const std::string& text) {
    format = text == "trace" ? Format::kTrace : text == "json" ? Format::kJson : Format::kTable;
    return true;
  };
  flags.Word("-o,--output", names, store, "Output format [table]");
}

void AddOptionalLoadReading(Flags& flags, LoadReading& reading) {
  AddLoadReading(flags, reading);
  for (const char* name : {"--format", "--first-layer", "--layers", "--experts"}) {
    flags.With(name).Needs("--load");
  }
}

void AddLoadReading(Flags& flags, LoadReading& reading) {
  flags.Word("--format", LoadFormatNames(), reading.format,
             "Format of the load, if its content is ambiguous; vllm is the statistics file of an "
             "open pull request");
  AddLayerChoice(flags, reading.layers, "First layer to read [0]",
                 "Layers to read, such as 3-60 or 1,3,5 [all]");
  flags.With("--first-layer").Check(&CheckNotNegative);
  AddInteger(flags, "--experts", "E", reading.experts,
             "Number of experts, for files of single choices: router traces of Megatron, or .pt of "
             "a tensor [tokens, layers, top-k]");
}

void AddLayerChoice(Flags& flags, LayerChoice& choice, const std::string& first_help,
                    const std::string& list_help) {
  AddInteger(flags, "--first-layer", "L", choice.first, first_help);
  const auto store = [&choice](const std::string& text) {
    if (auto list = ParseLayerNumbers(text); list.ok()) choice.list = *std::move(list);
    return true;
  };
  flags.Value("--layers", "LIST", store, list_help).Excludes("--first-layer");
  flags.Check([](const std::string& text) {
    return std::string(text.empty() ? "" : ParseLayerNumbers(text).status().message());
  });
}

void AddShapeOptions(Flags& flags, ShapeOptions& options) {
  AddInteger(flags, "--gpus", "G", options.gpus, "GPUs of the expert-parallel group").Required();
  AddInteger(flags, "--nodes", "N", options.nodes, "NVLink domains that the GPUs are in [1]");
  AddInteger(flags, "--groups", "K", options.groups, "The router's expert groups [1]");
  const auto store = [&options](const std::string& name) {
    options.policy = name;
    return true;
  };
  flags.Value("--policy", absl::StrJoin(PolicyNames(), "|"), store,
              "Policy that computes the placement [" + options.policy.name + "]");
  flags.Word("--tie-break", {"stable", "compat"}, options.tie_break,
             "Order of equal loads [stable]");
  flags.Word("--hierarchy", {"strict", "soft", "none"}, options.hierarchy,
             "Keep expert groups on their node [strict if groups % nodes == 0]");
  flags.Word("--effort", {"fast", "default", "thorough"}, options.effort,
             "Amount of search [default]");
  flags.Switch("--allow-duplicates", options.allow_duplicates,
               "Allow several replicas of an expert on one GPU");
  AddInteger(
      flags, "--max-moves-per-gpu", "M", options.max_moves_per_gpu,
      "Most transfers into a GPU in a layer [incremental: 2 unless far off; others: no limit]");
}

void AddCostOptions(Flags& flags, CostOptions& options) {
  AddBytes(flags, "--expert-bytes", options.expert_bytes,
           absl::StrCat("Bytes of one transfer, e.g. 88MB [", options.expert_bytes, "]"));
  flags.Text(
      "--link-gbps", "INTRA,INTER", options.link_gbps,
      "Bandwidth of a GPU inside a node and between nodes, in GB/s or with a unit, 400Gb/s [" +
          options.link_gbps + "]");
  AddQuantity(
      flags, "--token-ns", "T", options.token_ns,
      "Time of a token on the fullest GPU [176ns, with --training 528ns]",
      Quantity{&ParseTokenTime, "a time such as 176ns or 0.2us, or a number of nanoseconds"});
  flags.Switch("--training", options.training,
               "Price replicas: a broadcast of weights and a sum of gradients in each step");
  AddBytes(flags, "--weight-bytes", options.weight_bytes,
           "Weights of a replica, with --training [--expert-bytes]");
  AddBytes(flags, "--gradient-bytes", options.gradient_bytes,
           "Gradients of a replica, with --training [2 * weights: fp32]");
}

Flags& AddWindow(Flags& flags, std::string& window) {
  return flags.Text("--window", "sum|last|ema:A", window,
                    "How windows are combined into one load [sum]");
}

void AddQueryOptions(Flags& flags, QueryOptions& options, const std::set<ExitCode>& more_exit_codes,
                     Formats formats) {
  flags.Text("--endpoint", "HOST:PORT|unix:PATH", options.endpoint,
             "Daemon to contact, or several, A,B: the leading one answers [EPLB_ENDPOINT, config "
             "file, unix socket, 127.0.0.1:29610]");
  flags.Text(
      "--context", "NAME", options.context,
      "Daemon to contact, by its name in the configuration file [EPLB_CONTEXT, context use]");
  flags.OnComplete([flags, &options] {
    // After the command, one of the two flags is enough to name the daemon.
    if (!options.context.empty() || !options.endpoint.empty()) return;
    options.context = flags.GivenToProgram("--context");
    options.endpoint = flags.GivenToProgram("--endpoint");
  });
  flags.Text("--tls-ca", "FILE", options.tls.ca,
             "CA that signed the daemon's certificate, PEM [EPLB_TLS_CA]");
  flags.Text("--tls-cert", "FILE", options.tls.cert,
             "Certificate of this client, PEM [EPLB_TLS_CERT]");
  flags.Text("--tls-key", "FILE", options.tls.key, "Key of --tls-cert, PEM [EPLB_TLS_KEY]");
  flags.Text("--tls-server-name", "NAME", options.tls.server_name,
             "Name in the daemon's certificate [EPLB_TLS_SERVER_NAME, the endpoint's host]");
  flags.Text("--timeout", "DURATION", options.timeout, "How long to wait [5s]");
  AddFormat(flags, options.format, formats);
  std::set<ExitCode> codes = {kOk, kError, kUsage, kUnreachable, kDenied, kTimeout};
  codes.insert(more_exit_codes.begin(), more_exit_codes.end());
  flags.SetFooter(ExitCodesText(codes));
}

void AddJobOption(Flags& flags, std::string& job, const std::string& help, const char* name) {
  flags.Text(name, "NAME", job, help).Check([](const std::string& text) {
    return NameProblem(text, wire::kMaxNameLength);
  });
}

void AddRequestIdOption(Flags& flags, std::string& request_id) {
  flags.Text("--request-id", "ID", request_id,
             "Identifier of the request; the daemon refuses a second one with the same identifier "
             "[random]");
  flags.Check([](const std::string& id) { return NameProblem(id, wire::kMaxRequestIdLength); });
}

void AddLimitOption(Flags& flags, int32_t& limit) {
  constexpr int32_t kMost = 1000;
  AddInteger(flags, "--limit", "N", limit,
             absl::StrCat("Length of the list at most [", limit, "]"));
  flags.Check([](const std::string& text) {
    int32_t number = 0;
    const bool good = ReadInteger(text, number) && number >= 1 && number <= kMost;
    return good ? "" : absl::StrCat("\"", text, "\" is no integer 1..", kMost);
  });
}

}  // namespace eplb::cli
