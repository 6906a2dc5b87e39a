"""`JobWidget` shows a job's table and draws it anew at every change, which a thread of its own watches for."""

from __future__ import annotations

import threading
from html import escape

import anywidget
import traitlets

from trainmaster.client.errors import ClientError
from trainmaster.client.jobs import JobClient
from trainmaster.client.notebook.page import job_html

# The table comes from Python, which has escaped all that users wrote.
_ESM = """
export default {
  render({ model, el }) {
    const draw = () => { el.innerHTML = model.get("html"); };
    model.on("change:html", draw);
    draw();
    return () => model.off("change:html", draw);
  },
};
"""


class JobWidget(anywidget.AnyWidget):
    """JobWidget is a job's table in a notebook; `stop` ends its watching."""

    _esm = _ESM
    html = traitlets.Unicode("").tag(sync=True)
    thread: threading.Thread

    def __init__(self, html: str) -> None:
        super().__init__(html=html)
        self.stopped = threading.Event()

    @classmethod
    def following(cls, jobs: JobClient, name: str) -> JobWidget:
        """Returns a widget that follows a job until it has ended or is deleted. Raises JobNotFound."""
        widget = cls(html=job_html(jobs.get(name)))
        widget.thread = threading.Thread(target=widget._follow, args=(jobs, name), daemon=True)
        widget.thread.start()
        return widget

    def stop(self) -> None:
        """Ends the watching, at the next change at the latest."""
        self.stopped.set()

    def _follow(self, jobs: JobClient, name: str) -> None:
        try:
            for job in jobs.watch(name):
                if self.stopped.is_set():
                    return
                self.html = job_html(job)
                if job.finished:
                    return
            self.html += "<div>The job was deleted.</div>"
        except ClientError as error:
            self.html += f"<div>{escape(str(error))}</div>"
