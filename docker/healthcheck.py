"""Exit code 0 if the service in this container is ready, else 1 and why."""

import os
import sys
import urllib.error
import urllib.request

url = f"http://127.0.0.1:{os.environ['BOUNDARYMORPH_PORT']}/readyz"
try:
    urllib.request.urlopen(url, timeout=4)
except urllib.error.HTTPError as error:
    sys.exit(error.read().decode(errors="replace"))
except OSError as error:
    sys.exit(str(error))
