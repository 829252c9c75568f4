import sys

from ptb_runner.cli import main

sys.exit(main())
