#include "client/cli/formats/yaml_json.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json_value.h"

namespace eplb {
namespace {

std::string At(const YAML::Mark& mark) {
  return absl::StrCat("line ", mark.line + 1, ", column ", mark.column + 1, ": ");
}

bool IsInteger(const std::string& text) {
  const size_t start = text.starts_with('-') ? 1 : 0;
  if (start == text.size() || (text[start] == '0' && text.size() > start + 1)) return false;
  return std::all_of(text.begin() + static_cast<std::ptrdiff_t>(start), text.end(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

// Writes each event as JSON. The first thing that JSON cannot express is kept as the error.
class JsonWriter final : public YAML::EventHandler {
 public:
  const std::string& json() const { return json_; }
  const std::string& error() const { return error_; }

  void OnDocumentStart(const YAML::Mark& /*mark*/) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Put(mark, "?", anchor, "null", false);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t /*anchor*/) override {
    Fail(mark, "an alias, expected plain values");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    const bool plain = tag == "?" || tag.empty();
    Put(mark, tag, anchor, plain && IsInteger(value) ? value : wire::JsonQuote(value), true);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    Open(mark, tag, anchor, '[');
  }
  void OnSequenceEnd() override { Close(']'); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    Open(mark, tag, anchor, '{');
  }
  void OnMapEnd() override { Close('}'); }

 private:
  struct Frame {
    bool is_map = false;
    bool key_is_next = false;
    bool is_empty = true;
  };

  void Fail(const YAML::Mark& mark, const char* what) {
    if (error_.empty()) error_ = absl::StrCat(At(mark), what);
  }

  void Check(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor) Fail(mark, "an anchor, expected plain values");
    if (!tag.empty() && tag != "?" && tag != "!") Fail(mark, "a tag, expected plain values");
  }

  // Writes the separator of the next value or key. Returns true if a key is next.
  bool Begin() {
    if (frames_.empty()) return false;
    Frame& frame = frames_.back();
    const bool is_key = frame.is_map && frame.key_is_next;
    const bool is_value = frame.is_map && !frame.key_is_next;
    if (is_value) {
      json_ += ':';
    } else if (!frame.is_empty) {
      json_ += ',';
    }
    frame.is_empty = false;
    frame.key_is_next = frame.is_map && !is_key;
    return is_key;
  }

  void Put(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
           const std::string& text, bool can_be_key) {
    Check(mark, tag, anchor);
    const bool is_key = Begin();
    if (is_key && !can_be_key) Fail(mark, "a key that is null");
    json_ += is_key && !text.starts_with('"') ? absl::StrCat("\"", text, "\"") : text;
  }

  void Open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, char bracket) {
    Check(mark, tag, anchor);
    if (Begin()) Fail(mark, "a key that is no single word");
    json_ += bracket;
    frames_.push_back({.is_map = bracket == '{', .key_is_next = bracket == '{'});
  }

  void Close(char bracket) {
    json_ += bracket;
    frames_.pop_back();
  }

  std::string json_;
  std::vector<Frame> frames_;
  std::string error_;
};

}  // namespace

absl::StatusOr<std::string> YamlToJson(std::string_view yaml) {
  if (yaml.size() > kMaxYamlBytes) {
    return InvalidInput("has ", yaml.size(), " bytes, at most ", kMaxYamlBytes,
                        " of YAML are read");
  }
  JsonWriter writer;
  try {
    std::istringstream stream{std::string(yaml)};
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(writer)) return InvalidInput("empty YAML");
    JsonWriter second;
    if (parser.HandleNextDocument(second)) return InvalidInput("has more than one YAML document");
  } catch (const YAML::Exception& error) {
    // The message may quote bytes of the file.
    return InvalidInput(At(error.mark), "not YAML: ", Printable(error.msg));
  }
  if (!writer.error().empty()) return InvalidInput(writer.error());
  return writer.json();
}

}  // namespace eplb
