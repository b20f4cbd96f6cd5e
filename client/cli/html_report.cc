// The daemon's web page as one file.
#include <optional>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/cli/page_documents.h"
#include "placement/digest.h"
#include "proto/wire/message_json.h"
#include "server/http/page/assets.h"

#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

constexpr std::string_view kScript = "<script defer src=\"page/";
constexpr std::string_view kStyle = "<link rel=\"stylesheet\" href=\"page/";
constexpr std::string_view kIcon = "<link rel=\"icon\"";
constexpr std::string_view kCharset = "<meta charset";
constexpr std::string_view kLicense = "uPlot-LICENSE.txt";

// A file of the page as it can stand inside of an element: a browser reads it byte by byte.
absl::StatusOr<std::string_view> Embeddable(std::string_view name) {
  const PageAsset* const asset = FindPageAsset(name);
  if (asset == nullptr) {
    return Internal("index.html names page/", std::string(name), ", expected a file of the page");
  }
  const std::string lower = absl::AsciiStrToLower({asset->bytes.data(), asset->bytes.size()});
  for (const char* const end : {"</script", "</style", "<!--", "\r"}) {
    if (!absl::StrContains(lower, end)) continue;
    return Internal("page/", std::string(name), " contains \"", absl::CEscape(end),
                    "\", which HTML cannot embed");
  }
  return asset->bytes;
}

// "sha256-..." of the content of an element.
std::string SourceOf(std::string_view content) {
  const Digest digest = Sha256(content);
  const std::string bytes(digest.bytes.begin(), digest.bytes.end());
  return absl::StrCat(" 'sha256-", absl::Base64Escape(bytes), "'");
}

// The elements that the policy allows, and their sources for it.
struct Elements {
  std::string text;
  std::string sources;

  absl::Status Add(std::string_view name, const char* tag) {
    EPLB_ASSIGN_OR_RETURN(const std::string_view content, Embeddable(name));
    absl::StrAppend(&text, "<", tag, ">", std::string(content), "</", tag, ">\n");
    absl::StrAppend(&sources, SourceOf(content));
    return absl::OkStatus();
  }
};

// `prefix`NAME"..: the name; none for another line.
std::optional<std::string_view> NameAfter(std::string_view line, std::string_view prefix) {
  if (!line.starts_with(prefix)) return std::nullopt;
  line.remove_prefix(prefix.size());
  return line.substr(0, line.find('"'));
}

// No "<" is left, so that no text in it can end the element; to JSON it is the same.
std::string DocumentsElement(const nlohmann::ordered_json& documents) {
  return absl::StrCat("<script type=\"application/json\" id=\"eplb-documents\">",
                      absl::StrReplaceAll(wire::DumpJson(documents), {{"<", "\\u003c"}}),
                      "</script>\n");
}

}  // namespace

absl::StatusOr<std::string> HtmlReport(const nlohmann::ordered_json& documents) {
  const PageAsset* const index = FindPageAsset("index.html");
  if (index == nullptr) return Internal("the page has no index.html");
  EPLB_ASSIGN_OR_RETURN(const std::string_view license, Embeddable(kLicense));
  const bool of_run = documents.value("kind", "") == "run";
  const char* const command = of_run ? "eplbctl report" : "eplbctl replay";
  Elements scripts;
  Elements styles;
  std::string before;  // up to the policy, between it and the end of the body, and from there on
  std::string middle;
  std::string after;
  std::string* part = &before;
  const absl::string_view text(index->bytes.data(), index->bytes.size());
  for (const absl::string_view one : absl::StrSplit(text, '\n')) {
    const std::string_view line(one.data(), one.size());
    if (const auto script = NameAfter(line, kScript)) {
      EPLB_RETURN_IF_ERROR(scripts.Add(*script, "script"));
    } else if (const auto style = NameAfter(line, kStyle)) {
      EPLB_RETURN_IF_ERROR(styles.Add(*style, "style"));
    } else if (!line.starts_with(kIcon)) {
      if (line == "</head>") absl::StrAppend(part, styles.text);
      if (line == "</body>") part = &after;
      absl::StrAppend(part, absl::StrReplaceAll(one, {{"eplbctl status", command}}), "\n");
      if (line.starts_with(kCharset)) part = &middle;
    }
  }
  // The scripts stand behind what they look for: inside of a page a browser defers none.
  return absl::StrCat(
      before,
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src",
      scripts.sources, "; style-src", styles.sources, "; base-uri 'none'; form-action 'none'\">\n",
      middle, DocumentsElement(documents), "<script type=\"text/plain\" id=\"uplot-license\">",
      std::string(license), "</script>\n", scripts.text, after);
}

}  // namespace eplb::cli
