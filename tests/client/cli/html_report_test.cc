#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"

#include "base/foreign_text.h"
#include "client/cli/page_documents.h"
#include "client/cli/report_forms.h"
#include "placement/digest.h"
#include "server/http/page/assets.h"
#include "tests/client/cli/small_run.h"

#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

constexpr char kDocuments[] = "<script type=\"application/json\" id=\"eplb-documents\">";
constexpr char kHostile[] =
    "</script><script>window.hurt=1</script><!-- <img src=x onerror=\"window.hurt=2\"> "
    "\u202egnp\u202c "
    "\xff ]]>";

// Each text between `begin` and the next `end`.
std::vector<std::string> Between(const std::string& text, const std::string& begin,
                                 const std::string& end) {
  std::vector<std::string> found;
  for (size_t at = text.find(begin); at != std::string::npos; at = text.find(begin, at)) {
    at += begin.size();
    const size_t stop = text.find(end, at);
    found.push_back(text.substr(at, stop - at));
    at = stop;
  }
  return found;
}

std::vector<std::string> Scripts(const std::string& html) {
  return Between(html, "<script>", "</script>");
}

std::string PageOf(const std::string& job, const std::string& reason) {
  RunDirectory run = SmallRun({{.step = 5}});
  run.report.job = job;
  run.report.run_id = reason;
  run.report.switches.front().reason = reason;
  run.placements.back().reason = reason;
  run.events = LoggedEvents{job, {EventAt(run, 8, "pause")}};
  run.events->events.front().reason = reason;
  const v1::RunReview review = ReviewRun(run, 4).value();
  return HtmlReport(RunPage(run, review, "runs/" + reason).value()).value();
}

Json DocumentsOf(const std::string& html) {
  const std::vector<std::string> found = Between(html, kDocuments, "</script>");
  return found.size() == 1 ? Json::parse(found.front()) : Json();
}

TEST(HtmlReportTest, HasEveryScriptOfThePageInItsOrder) {
  const std::string html = PageOf("demo", "because");
  std::vector<std::string> expected;
  const std::string index(FindPageAsset("index.html")->bytes);
  for (const std::string& name : Between(index, "src=\"page/", "\"")) {
    expected.emplace_back(FindPageAsset(name)->bytes);
  }
  EXPECT_GT(expected.size(), 10u);
  EXPECT_TRUE(Scripts(html) == expected);  // not printed: they are long
  // Documents stand before the scripts, and these behind the elements that they look for.
  EXPECT_LT(html.find("id=\"main\""), html.find(kDocuments));
  EXPECT_LT(html.find(kDocuments), html.find("<script>"));
}

TEST(HtmlReportTest, AsksForNothingElse) {
  std::string markup = PageOf("demo", "because");
  for (const char* const tag : {"script", "style"}) {
    std::string kept;
    for (size_t at = 0; at != std::string::npos;) {
      const size_t begin = markup.find(std::string("<") + tag, at);
      kept += markup.substr(at, begin == std::string::npos ? begin : begin - at);
      at = begin == std::string::npos ? begin : markup.find(std::string("</") + tag + ">", begin);
    }
    markup = kept;
  }
  EXPECT_THAT(markup, HasSubstr("id=\"main\""));
  EXPECT_THAT(markup, Not(HasSubstr("src=")));
  EXPECT_THAT(markup, Not(HasSubstr("url(")));
  EXPECT_THAT(markup, Not(HasSubstr("://")));
  for (const std::string& address : Between(markup, "href=\"", "\"")) EXPECT_EQ(address[0], '#');
  for (const std::string& style : Between(PageOf("demo", ""), "<style>", "</style>")) {
    EXPECT_THAT(style, Not(HasSubstr("url(")));
    EXPECT_THAT(style, Not(HasSubstr("@import")));
  }
}

TEST(HtmlReportTest, ThePolicyAllowsItsScriptsAndStylesByTheirHashAndNothingElse) {
  const std::string html = PageOf("demo", "because");
  const std::vector<std::string> policies =
      Between(html, "<meta http-equiv=\"Content-Security-Policy\" content=\"", "\">");
  ASSERT_EQ(policies.size(), 1u);
  std::string expected = "default-src 'none'; script-src";
  const auto add = [&expected](const std::vector<std::string>& contents) {
    for (const std::string& content : contents) {
      const Digest digest = Sha256(content);
      expected += " 'sha256-" +
                  absl::Base64Escape(std::string(digest.bytes.begin(), digest.bytes.end())) + "'";
    }
  };
  add(Scripts(html));
  expected += "; style-src";
  add(Between(html, "<style>", "</style>"));
  EXPECT_EQ(policies.front(), expected + "; base-uri 'none'; form-action 'none'");
  // A policy holds for what stands behind it.
  EXPECT_LT(html.find("Content-Security-Policy"), html.find("<style>"));
  EXPECT_LT(html.find("Content-Security-Policy"), html.find("<script"));
}

TEST(HtmlReportTest, HostileTextsStayDataAndAreReadBackPrintable) {
  const std::string plain = PageOf("demo", "because");
  const std::string html = PageOf(kHostile, kHostile);
  EXPECT_TRUE(Scripts(html) == Scripts(plain));
  EXPECT_EQ(Between(html, "<script", ">"), Between(plain, "<script", ">"));
  EXPECT_EQ(std::count(html.begin(), html.end(), '<'), std::count(plain.begin(), plain.end(), '<'));
  const Json documents = DocumentsOf(html);
  const Json& job = documents["paths"]["api/v1/jobs"]["jobs"][0];
  const std::string shown = Printable(kHostile);
  EXPECT_EQ(job["job"], shown);
  // The page asks by the name as encodeURIComponent writes it.
  bool found = false;
  for (const auto& [path, document] : documents["paths"].items()) {
    found =
        found || absl::StartsWith(path, "api/v1/jobs/%3C%2Fscript%3E%3Cscript%3Ewindow.hurt%3D1");
    EXPECT_EQ(path.find('<'), std::string::npos) << path;
    if (document.contains("plans")) {
      EXPECT_EQ(document["plans"][0]["reason"], shown);
    }
  }
  EXPECT_TRUE(found);
}

TEST(HtmlReportTest, AReportNamesTheCommandThatShowsTheSameFigures) {
  EXPECT_THAT(PageOf("demo", ""), HasSubstr("<code>eplbctl report</code>"));
  EXPECT_THAT(PageOf("demo", ""), Not(HasSubstr("eplbctl status")));
}

}  // namespace
}  // namespace eplb::cli
