"""What runs beside a student's code, and the wire to it. Nothing in here knows an answer."""
