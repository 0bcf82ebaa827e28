"""Shared by tests: see `test_request_pages`."""

from html.parser import HTMLParser


class Text(HTMLParser):
    def __init__(self, source):
        super().__init__()
        self.text, self.links = "", []
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name == "href"]

    def handle_data(self, data):
        self.text += data + " "
