"""`python -m services.streaming`."""

from nakadi.app.shutdown import SignalHandler

if __name__ == "__main__":
    signals = SignalHandler()
    signals.install()

    # This import takes a second, in which signals may arrive.
    from nakadi.app.shutdown import exit_process
    from services.streaming.program import main

    exit_process(main(signals=signals))
